"""`make bench`: ratios of time and memory, as tables and as JSON. Figures, not a test: none of them makes it fail."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import nanprobe
from benchmarks import commands, memory, sweep
from benchmarks.contenders import contenders
from benchmarks.models import MODELS
from benchmarks.timing import Contender, Ratio, compare

CONSOLE = Console()
MEMORY_MODEL = "transformer"
WATCHING_MODEL = "wide_mlp"
WATCHING_SHARE = 0.01  # of the parameters' size
DEEP_PEAK = 4.0  # times the plain step's peak


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--only", nargs="*", help="contenders by name; default: all")
    parser.add_argument(
        "--budget", type=float, default=12.0, help="seconds for each pair (at least five turns are taken)"
    )
    parser.add_argument("--native", action="store_true", help="also PyTorch's own CPU autocast: minutes")
    parser.add_argument(
        "--parts", nargs="*", default=["time", "memory", "sweep", "commands"], help="which parts to measure"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bench.json"))
    options = parser.parse_args()

    results: dict[str, object] = {"machine": machine()}
    parts: dict[str, Callable[[], object]] = {
        "time": lambda: time_part(options),
        "memory": memory_part,
        "sweep": lambda: sweep.measure("transformer", options.budget),
        "commands": commands_part,
    }
    for part in options.parts:
        results[part] = parts[part]()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    CONSOLE.print(f"saved {options.out}")


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "nanprobe": nanprobe.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def time_part(options: argparse.Namespace) -> dict[str, dict[str, object]]:
    """Ratios of every contender on every model."""
    found: dict[str, dict[str, object]] = {}
    cells: dict[str, list[str]] = {}
    columns: list[Contender] = []
    for model in options.models:
        columns = contenders(MODELS[model], native=options.native)
        by_name = {c.name: c for c in columns}
        found[model] = {}
        for way in columns:
            if way.name == "plain" or (options.only and way.name not in options.only):
                continue
            with CONSOLE.status(f"{model}: {way.name}"):
                result = attempt(way, by_name[way.against], options.budget)
            found[model][way.name] = result.as_json() if isinstance(result, Ratio) else {"error": result}
            CONSOLE.print(f"{model}: {way.name}: {cell(result, way.target)} of {way.against}")
            cells.setdefault(way.name, []).append(cell(result, way.target))
    CONSOLE.print(time_table(options.models, columns, cells))
    return found


def attempt(way: Contender, base: Contender, budget: float) -> Ratio | str:
    """The ratio, or why there is none: one column that breaks must not take the others with it."""
    try:
        return compare(way, base, budget)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def cell(result: Ratio | str, target: float | None) -> str:
    """One ratio with its quartiles, green within its target and red beyond it."""
    if isinstance(result, str):
        return f"[red]{escape(result)}[/]"
    text = f"{result.median:.2f}× [dim]({result.low:.2f}-{result.high:.2f})[/]"
    if target is None:
        return text
    return f"[{'green' if result.median <= target else 'red'}]{text}[/]"


def time_table(models: list[str], columns: list[Contender], cells: dict[str, list[str]]) -> Table:
    """Contenders down, models across."""
    table = Table(
        "one step of", "beside", "target", *models, title="Time of a step, as a multiple (quartiles over turns)"
    )
    for way in columns:
        if way.name in cells:
            target = "" if way.target is None else f"≤ {way.target}×"
            table.add_row(way.name, way.against, target, *cells[way.name])
    return table


def memory_part() -> dict[str, object]:
    """What watching holds, and the peak of deep steps."""
    table = Table("memory", "measured", "target", title="Memory")
    plain = memory.measure(WATCHING_MODEL, "plain")
    watched = memory.measure(WATCHING_MODEL, "watched")
    share = (watched["held"] - plain["held"]) / plain["parameters"]
    table.add_row(f"watching, share of parameters ({plain['parameters'] / 2**20:.0f} MB)", f"{share:.2%}", "< 1%")
    found: dict[str, object] = {"watching_share": share}
    base = memory.measure(MEMORY_MODEL, "plain")["peak"]
    for name in (
        "watched",
        "amp, watched",
        "raw fp16, watched",
        "deep fp32",
        "deep amp",
        "deep fp16",
    ):
        try:
            found[f"{name} peak"] = ratio = memory.measure(MEMORY_MODEL, name)["peak"] / base
        except RuntimeError as error:
            CONSOLE.print(f"{name}: {escape(str(error))}")
            continue
        table.add_row(f"peak of {name}, beside plain", f"{ratio:.2f}×", f"≤ {DEEP_PEAK}×" if "deep" in name else "")
    CONSOLE.print(table)
    return found


def commands_part() -> dict[str, float]:
    """Seconds a person waits."""
    table = Table("command", "seconds", "target", title="Commands")
    found = {"help": commands.help_seconds(), "demo": commands.demo_seconds()}
    table.add_row("nanprobe --help", f"{found['help']:.2f}", "≤ 0.3")
    table.add_row("nanprobe diagnose examples/fp16_overflow.py", f"{found['demo']:.1f}", "≤ 20")
    CONSOLE.print(table)
    return found


if __name__ == "__main__":
    main()

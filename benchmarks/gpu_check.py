"""What only a GPU can tell, in one run of at most nine minutes: is the emulation right, and what does watching cost?

    PYTHONPATH=. python3 benchmarks/gpu_check.py --out DIR [--cases DIR] [--parts ...]

Needs no installation and no network. Every part has a time budget and writes its results to DIR as it goes, so that a
run that is cut off keeps what it has. `--device cpu` does the same without a GPU, to try the script itself.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import NO_AMP, contenders, session
from benchmarks.models import Trainer, transformer
from benchmarks.timing import Ratio, compare
from nanprobe.records import StageName

ROOT = Path(__file__).resolve().parent.parent
BUDGETS = {"dtypes": 40.0, "unchanged": 40.0, "overhead": 130.0, "memory": 30.0, "cases": 280.0}  # seconds
CASE_TIMEOUT = 90.0  # seconds for one `nanprobe diagnose`
CASE_STEPS = 50


class Results:
    """Results by part, on disk after every addition."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "gpu_check.json"
        self.parts: dict[str, Any] = {}

    def put(self, part: str, name: str, value: Any) -> None:
        """Adds one result and saves all."""
        self.parts.setdefault(part, {})[name] = value
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.parts, indent=1, default=str) + "\n")
        temporary.replace(self._path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--cases", type=Path, help="folder of case scripts; without it that part is left out")
    parser.add_argument("--parts", nargs="*", default=list(BUDGETS), choices=list(BUDGETS))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="cases at a time")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on every part's time budget")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu_check: no CUDA device here; --device cpu tries the script without one")

    results = Results(options.out)
    results.put("machine", "torch", torch.__version__)
    results.put("machine", "device", torch.cuda.get_device_name() if options.device == "cuda" else "cpu")
    parts: dict[str, Callable[[float], Iterator[tuple[str, Any]]]] = {
        "dtypes": partial(check_dtypes, options.device),
        "unchanged": partial(check_unchanged, options.device),
        "overhead": partial(measure_overhead, options.device),
        "memory": partial(measure_memory, options.device),
        "cases": partial(compare_cases, options.cases, options.device, options.workers),
    }
    for part in options.parts:
        if part == "cases" and options.cases is None:
            continue
        run_part(part, parts[part], BUDGETS[part] * options.scale, results)
    print(summary(results.parts))


def run_part(name: str, part: Callable[[float], Iterator[tuple[str, Any]]], budget: float, results: Results) -> None:
    """Runs one part to its end or its deadline; an error in it is a result like any other."""
    start = time.monotonic()
    print(f"== {name} (at most {budget:.0f} s)", flush=True)
    try:
        for key, value in part(start + budget):
            results.put(name, key, value)
            print(f"{name}: {key}: {value}", flush=True)
            if time.monotonic() > start + budget:
                results.put(name, "cut off", True)
                break
    except Exception as error:
        results.put(name, "error", f"{type(error).__name__}: {error}")
        print(f"{name}: {type(error).__name__}: {error}", flush=True)
    print(f"== {name}: {time.monotonic() - start:.0f} s", flush=True)


def check_dtypes(device: str, deadline: float) -> Iterator[tuple[str, Any]]:
    """Output dtypes of PyTorch's autocast test lists, native beside the emulation."""
    command = [sys.executable, "-m", "benchmarks.autocast_lists", device]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=deadline - time.monotonic(), check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr[-500:]}")
    rows = json.loads(done.stdout.splitlines()[-1])
    comparable = [row for row in rows if row["comparable"]]
    yield "operations", len(comparable)
    yield "same", sum(bool(row["same"]) for row in comparable)
    yield "different", [row for row in comparable if not row["same"]]


def check_unchanged(device: str, deadline: float) -> Iterator[tuple[str, Any]]:
    """Weights after 20 watched steps against 20 plain ones, bit by bit; and how often a step waits for the GPU."""
    build = partial(transformer, device, 2, 64, 4, 32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    plain = weights_after(build(), 20, nullcontext())
    yield "plain against plain", identical(plain, weights_after(build(), 20, nullcontext()))
    for stage, deep in itertools.product((StageName.FP32,), (False, True)):
        watched = weights_after(build(), 20, session(stage, device, deep, NO_AMP))
        yield f"plain against {'deep' if deep else 'watched'} {stage.value}", identical(plain, watched)
    torch.use_deterministic_algorithms(False)
    if device == "cuda":
        plain_waits = waits(build(), nullcontext())
        yield "waits in a plain step", plain_waits
        yield "waits in a watched step", waits(build(), session(StageName.FP32, device, False, NO_AMP))
        yield "waits in a deep step", waits(build(), session(StageName.FP32, device, True, NO_AMP))


def weights_after(trainer: Trainer, steps: int, around: Any) -> list[torch.Tensor]:
    """Parameters after so many steps, from the same seed each time."""
    torch.manual_seed(1)
    with around:
        for _ in range(steps):
            trainer.step()
    return [p.detach().clone() for p in trainer.model.parameters()]


def identical(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    """Whether all tensors are equal bit by bit."""
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def waits(trainer: Trainer, around: Any) -> int:
    """Synchronising calls in one step, as PyTorch itself counts them."""
    with around:
        trainer.step()
        trainer.step()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            trainer.step()
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(w.message) for w in caught)


def gpu_transformer(device: str) -> Trainer:
    """A transformer that keeps a GPU busy (85 million parameters in its layers); small where there is none."""
    if device == "cpu":
        return transformer(layers=2, dim=64, batch=2, length=32)
    return transformer(device, layers=12, dim=768, batch=16, length=512)


def measure_overhead(device: str, deadline: float) -> Iterator[tuple[str, Any]]:
    """Every column of the benchmark on the device."""
    ways = contenders(partial(gpu_transformer, device), device)
    by_name = {way.name: way for way in ways}
    pairs = [way for way in ways if way.name != "plain"]
    for number, way in enumerate(pairs):
        left = deadline - time.monotonic()
        if left <= 0:
            yield way.name, "no time left"
            continue
        budget = min(10.0, left / (len(pairs) - number) / 2)  # the other half goes into building and warming up
        try:
            found: Ratio | str = compare(way, by_name[way.against], budget, turns=3)
        except Exception as error:
            found = f"{type(error).__name__}: {error}"
        release()
        yield way.name, found if isinstance(found, str) else {"against": way.against, **found.as_json()}


def measure_memory(device: str, deadline: float) -> Iterator[tuple[str, Any]]:
    """Peak of a step and what is held between steps, in bytes of the GPU's allocator."""
    if device == "cpu":
        return
    for way in contenders(partial(gpu_transformer, device), device):
        if way.name in ("plain", "watched", "amp", "amp, watched", "deep fp32", "deep amp"):
            release()
            before = torch.cuda.memory_allocated()
            trainer = way.build()
            with way.enter(trainer):
                trainer.step()
                trainer.step()
                held = torch.cuda.memory_allocated() - before
                torch.cuda.reset_peak_memory_stats()
                trainer.step()
                peak = torch.cuda.max_memory_allocated() - before
            yield way.name, {"held": held, "peak": peak, "parameters": trainer.parameter_bytes}
            del trainer


def release() -> None:
    """Gives cached memory back, so that the next figure starts clean."""
    import gc

    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def compare_cases(folder: Path, device: str, workers: int, deadline: float) -> Iterator[tuple[str, Any]]:
    """Verdicts of `nanprobe diagnose` on the device beside those of the CPU emulation, for every script of a folder."""
    scripts = sorted(folder.glob("*.py"))
    verdicts: dict[str, dict[str, Any]] = {script.name: {} for script in scripts}
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        # Both devices of one script next to each other: a run that is cut off has whole pairs.
        jobs = {
            pool.submit(diagnose, script, where, deadline): (script.name, where)
            for script in scripts
            for where in ("native", "emulated")
        }
        for job in concurrent.futures.as_completed(jobs):
            name, where = jobs[job]
            verdicts[name][where] = job.result()
            if len(verdicts[name]) == 2:
                yield name, {**verdicts[name], "same": same_verdict(**verdicts[name])}


def diagnose(script: Path, where: str, deadline: float) -> dict[str, Any]:
    """The verdict of one run, or why there is none."""
    timeout = min(CASE_TIMEOUT, deadline - time.monotonic())
    if timeout <= 5:
        return {"status": "no time left"}
    device = "cuda" if where == "native" and torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nanprobe", "diagnose", script.name, "--device", device, "--format", "json"]
        command += ["--steps", str(CASE_STEPS), "--output", f"{folder}/run"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
        process = subprocess.Popen(
            command,
            cwd=script.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"status": "timeout", "seconds": timeout}
    return verdict_of(output, errors) | {"device": device, "seconds": round(time.monotonic() - start, 1)}


def verdict_of(output: str, errors: str) -> dict[str, Any]:
    """Status, code, kind and place out of a JSON document."""
    try:
        document = json.loads(output)
    except ValueError:
        return {"status": "no document", "stderr": errors[-500:]}
    verdict = document["verdict"] or {}
    found = {key: verdict.get(key) for key in ("code", "kind", "stage", "step", "module", "parameter", "op")}
    return {"status": document["status"], **found, "line": (verdict.get("source") or {}).get("line")}


def same_verdict(native: dict[str, Any], emulated: dict[str, Any]) -> bool:
    """Whether both say the same cause at the same place; the step may differ, rounding differs in the last bit."""
    return all(native.get(key) == emulated.get(key) for key in ("status", "code", "kind", "line"))


def summary(parts: dict[str, Any]) -> str:
    """The whole run in a few lines."""
    lines = []
    if dtypes := parts.get("dtypes"):
        lines.append(f"dtypes: {dtypes.get('same')} of {dtypes.get('operations')} operations as on the device")
    for name, value in parts.get("unchanged", {}).items():
        lines.append(f"unchanged: {name}: {value}")
    for name, value in parts.get("overhead", {}).items():
        shown = f"{value['median']:.2f}× {value['against']}" if isinstance(value, dict) else value
        lines.append(f"overhead: {name}: {shown}")
    memory = parts.get("memory", {})
    for name, value in memory.items():
        if isinstance(value, dict) and "plain" in memory:
            share = (value["held"] - memory["plain"]["held"]) / value["parameters"]
            ratio = value["peak"] / memory["plain"]["peak"]
            lines.append(f"memory: {name}: holds {share:+.2%} of the parameters' size, peak {ratio:.2f}× plain")
    pairs = [v for v in parts.get("cases", {}).values() if isinstance(v, dict) and "same" in v]
    if pairs:
        done = [
            p
            for p in pairs
            if {p["native"]["status"], p["emulated"]["status"]} <= {"failing", "healthy", "inconclusive"}
        ]
        lines.append(f"cases: {sum(p['same'] for p in done)} of {len(done)} verdicts as on the device")
        for name, pair in parts["cases"].items():
            if isinstance(pair, dict) and not pair.get("same", True):
                lines.append(f"  {name}: native {brief(pair['native'])}, emulated {brief(pair['emulated'])}")
    return "\n".join(["", "SUMMARY", *lines])


def brief(verdict: dict[str, Any]) -> str:
    """A verdict in a few words."""
    if not verdict.get("code"):
        return str(verdict.get("status"))
    return f"{verdict['code']} {verdict['stage']}@{verdict['step']} line {verdict['line']}"


if __name__ == "__main__":
    main()

"""The machine as text, for a bug report: in the terminal, as JSON, as Markdown."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from nanprobe.machine import Machine
from nanprobe.reports.document import SCHEMA_VERSION, to_plain
from nanprobe.reports.formats import ReportFormat
from nanprobe.reports.numbers import NOT_MEASURED, count_noun

ENVIRONMENT_FORMATS = {form.value: form for form in (ReportFormat.TERMINAL, ReportFormat.JSON, ReportFormat.MARKDOWN)}

Rows = list[tuple[str, str]]


def render_environment(machine: Machine, form: ReportFormat, *, width: int = 80, color: bool = False) -> str:
    """The machine in one of ENVIRONMENT_FORMATS; width, in columns, and colour concern the terminal only."""
    if form is ReportFormat.JSON:
        document = {"schema_version": SCHEMA_VERSION, **asdict(machine)}
        return json.dumps(to_plain(document), indent=2, allow_nan=False) + "\n"
    if form is ReportFormat.MARKDOWN:
        return _render_markdown(machine)
    return _render_terminal(machine, width, color)


def list_sections(machine: Machine) -> list[tuple[str, Rows]]:
    """Everything there is to say, by what it is about."""
    return [
        ("VERSIONS", [("python", machine.python), *machine.packages.items()]),
        ("MACHINE", _list_hardware(machine)),
        ("PRECISION", [("FP16", machine.fp16), *_list_precision(machine.torch)]),
        ("VARIABLES", _list_variables(machine)),
        ("NANPROBE", [("runs", f"{count_noun(machine.runs, 'run')} in {_shorten(machine.runs_folder)}")]),
    ]


def _list_hardware(machine: Machine) -> Rows:
    memory = NOT_MEASURED if machine.memory is None else _show_bytes(machine.memory)
    rows = [
        ("system", machine.system),
        ("python at", _shorten(machine.executable)),
        ("cpu", f"{machine.cpu}, {count_noun(machine.cores, 'core')} to use"),
        ("memory", memory),
    ]
    if machine.torch is None:
        return [*rows, ("torch", machine.torch_problem or NOT_MEASURED)]
    devices = machine.torch.get("devices") or []
    for number, device in enumerate(devices):
        told = f"{device['name']}, compute capability {device['capability']}, {_show_bytes(device['memory'])}"
        rows.append((f"cuda:{number}", told))
    build = machine.torch.get("cuda_build") or machine.torch.get("hip_build")
    rows.append(("torch is built for", f"CUDA {build}" if build else "the CPU only"))
    return rows


def _list_precision(answers: dict[str, Any] | None) -> Rows:
    if answers is None:
        return []
    names = {
        "tf32_matmul": "TF32 in matmul",
        "tf32_cudnn": "TF32 in cuDNN",
        "float32_matmul_precision": "float32 matmul precision",
        "fp16_reduced_precision_reduction": "FP16 reduced reductions",
        "default_dtype": "default dtype",
        "cpu_capability": "CPU kernels",
        "threads": "threads",
    }
    return [(label, _show(answers.get(key))) for key, label in names.items() if answers.get(key) is not None]


def _list_variables(machine: Machine) -> Rows:
    rows = [(name, _shorten(value)) for name, value in machine.variables.items()]
    rows += [(name, "is set (not shown)") for name in machine.secrets]
    return rows or [("none", "of those nanprobe knows is set")]


def _render_terminal(machine: Machine, width: int, color: bool) -> str:
    from nanprobe.reports.terminal.canvas import Canvas

    canvas = Canvas(width, color)
    for number, (title, rows) in enumerate(list_sections(machine)):
        if number:
            canvas.blank()
        canvas.line((title, "bold"))
        canvas.rows(rows)
    return canvas.text()


def _render_markdown(machine: Machine) -> str:
    from nanprobe.reports.markdown.syntax import escape, head, row

    lines = [row([escape(label), escape(value)]) for _, rows in list_sections(machine) for label, value in rows]
    body = "\n".join([head(["", ""]), *lines])
    return f"<details><summary>nanprobe env</summary>\n\n{body}\n\n</details>\n"


def _show(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def _show_bytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def _shorten(path: str) -> str:
    from nanprobe.reports.terminal.closing import shorten_home

    return shorten_home(path)

"""The head of the report: what was run, on what, and what the user should know about how."""

from __future__ import annotations

import shlex

from nanprobe.records import RunRecord, Target
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.canvas import Canvas

NOTICES = 6  # shown; the rest is in the JSON document of the run


def draw_header(canvas: Canvas, run: RunRecord) -> None:
    """Target, device and versions, then the notices of the run and of its stages, each once."""
    canvas.line(("nanprobe", "bold cyan"), "  ", (show_target(run.target), "bold"))
    facts = [run.device, f"torch {run.torch_version}", f"nanprobe {run.nanprobe_version}"]
    facts += [f"{count_noun(run.steps, 'step')} a stage", f"seed {run.seed}"]
    canvas.paragraph((" · ".join(facts), "dim"), indent=10)
    notices = list_notices(run)
    for text in notices[:NOTICES]:
        canvas.paragraph(text, lead=[("! ", "yellow")], indent=2)
    if len(notices) > NOTICES:
        canvas.line(f"  ! and {count_noun(len(notices) - NOTICES, 'more notice')}")


def list_notices(run: RunRecord) -> list[str]:
    """The notices of the run and of all stages, without repeats, in order."""
    return list(dict.fromkeys([*run.notices, *(text for stage in run.stages for text in stage.notices)]))


def show_target(target: Target) -> str:
    """The target as it was given on the command line: "train.py --epochs 1", "-m package.train"."""
    path = f"-m {target.path}" if target.mode == "module" else shlex.quote(target.path)
    return " ".join([path, *map(shlex.quote, target.argv)])


def show_command(target: Target) -> str:
    """The target as an argument of a nanprobe command, the script's own arguments behind "--"."""
    path = f"-m {target.path}" if target.mode == "module" else shlex.quote(target.path)
    return " ".join([path, "--", *map(shlex.quote, target.argv)]) if target.argv else path

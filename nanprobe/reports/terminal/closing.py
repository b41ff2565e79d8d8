"""The last lines: where the run is kept, and what to run next."""

from __future__ import annotations

from pathlib import Path

from nanprobe.findings import Diagnosis, Kind, Status
from nanprobe.records import RunRecord
from nanprobe.reports.terminal.canvas import Canvas
from nanprobe.reports.terminal.header import show_command


def draw_closing(canvas: Canvas, run: RunRecord, diagnosis: Diagnosis) -> None:
    """The run directory, and commands with what each is for; commands are never broken, they are there to be copied."""
    canvas.rule(style="dim")
    canvas.line(("run   ", "dim"), shorten_home(run.directory), whole=True)
    for number, (command, purpose) in enumerate(list_next(run, diagnosis)):
        lead, comment = "next  " if number == 0 else "      ", f"  # {purpose}"
        fits = len(lead + command + comment) <= canvas.width
        canvas.line((lead, "dim"), (command, "cyan"), (comment if fits else "", "dim"), whole=True)
        if not fits:
            canvas.line("     ", (comment, "dim"))


def shorten_home(path: str) -> str:
    """The path with ~ for the home directory."""
    try:
        return str("~" / Path(path).relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return path


def list_next(run: RunRecord, diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Commands that lead on from here, and what each is for."""
    commands = []
    verdict = diagnosis.verdict
    if verdict is not None:
        commands.append((f"nanprobe explain {verdict.code}", "what this finding means, with sources"))
    if diagnosis.status is Status.HEALTHY or (verdict and verdict.kind in (Kind.OVERFLOW, Kind.UNDERFLOW)):
        command = f"nanprobe sweep-scale {show_command(run.target)}"
        commands.append((command, "which loss scale is safe for which layer"))
    if diagnosis.status is Status.INCONCLUSIVE:
        commands.append((f"nanprobe diagnose {show_command(run.target)}", "again, once that is mended"))
    return commands

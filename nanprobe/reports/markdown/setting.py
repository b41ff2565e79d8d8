"""The environment in Markdown: what was run, on what, and how to run it again."""

from __future__ import annotations

from nanprobe.records import RunRecord
from nanprobe.reports.markdown.page import Page
from nanprobe.reports.markdown.syntax import code, escape, head, row
from nanprobe.reports.numbers import count_noun
from nanprobe.reports.terminal.closing import shorten_home
from nanprobe.reports.terminal.header import list_notices, show_command

_NOTICES = 10
_LONGEST_COMMAND = 300  # characters


def write_setting(page: Page, run: RunRecord) -> None:
    """Command, device, versions and seed, then the notices of the run and its stages."""
    rows = [
        ("command", code(f"nanprobe diagnose {show_command(run.target)}", _LONGEST_COMMAND)),
        ("device", escape(run.device)),
        ("torch", escape(run.torch_version)),
        ("nanprobe", escape(run.nanprobe_version)),
        ("steps", f"{count_noun(run.steps, 'step')} a stage, seed {run.seed}"),
        ("run directory", code(shorten_home(run.directory))),
    ]
    page.add(write_facts(rows), last=True)
    notices = [escape(text, 300) for text in list_notices(run)]
    if len(notices) > _NOTICES:
        notices[_NOTICES:] = [f"and {count_noun(len(notices) - _NOTICES, 'more notice')}"]
    if notices:
        page.add("\n".join(f"- {text}" for text in notices), last=True)


def write_facts(rows: list[tuple[str, str]]) -> str:
    """The section's heading and its table; values are Markdown already."""
    return "\n".join(["### Environment\n", head(["", ""]), *(row([label, text]) for label, text in rows)])

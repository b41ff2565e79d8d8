"""What the shell offers for an option's value. The user waits for it, so nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nanprobe.cli.formats import FORMATS
from nanprobe.findings import Kind, Severity
from nanprobe.options import DEVICES
from nanprobe.records import StageName

Offer = list[str] | list[tuple[str, str]]  # values, or values and what they stand for
Complete = Callable[[str], Offer]


def one_of(values: Iterable[str]) -> Complete:
    """Offers the values that begin with what was typed."""
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete.lower())]

    return complete


def some_of(values: Iterable[str]) -> Complete:
    """Offers the next item of a comma-separated list, without those that are in it."""
    known = tuple(values)

    def complete(incomplete: str) -> list[str]:
        done, comma, begun = incomplete.rpartition(",")
        left = [value for value in known if value not in done.split(",")]
        return [f"{done}{comma}{value}" for value in left if value.startswith(begun.lower())]

    return complete


def complete_code(incomplete: str) -> list[tuple[str, str]]:
    """Offers the codes of the catalogue, each with its kind."""
    from nanprobe.catalogue import CATALOGUE

    return [(code, page.kind.value) for code, page in CATALOGUE.items() if code.startswith(incomplete.upper())]


def complete_recipe(incomplete: str) -> list[str]:
    """Offers the names of the recipes that come with nanprobe; the shell adds its files where none fits."""
    from nanprobe.recipe.collection import shipped_files

    return [name for name in sorted(shipped_files()) if name.startswith(incomplete)]


def complete_run(incomplete: str) -> list[str]:
    """Offers `last` and the runs in the user's cache; the shell adds its directories where none of these fits."""
    from nanprobe.storage import LAST, list_runs

    return [name for name in (LAST, *(path.name for path in list_runs())) if name.startswith(incomplete)]


complete_device = one_of(DEVICES)
complete_dtype = one_of(("fp16", "bf16"))
complete_number_format = one_of(("fp16", "bf16", "e4m3", "e5m2"))
complete_stages = some_of(stage.value for stage in StageName)
complete_fail_on = some_of([*(s.value for s in Severity), *(k.value for k in Kind), "none"])
complete_format = one_of(FORMATS)
complete_short_format = one_of(("terminal", "json", "markdown"))
complete_check_format = one_of(("terminal", "json", "junit", "github"))

"""A run of `nanprobe diagnose` read back from its directory, with the answer that follows from it."""

from __future__ import annotations

from pathlib import Path

from nanprobe.diagnosis import diagnose
from nanprobe.findings import Diagnosis
from nanprobe.records import RunRecord
from nanprobe.storage import read_run, read_verification


def read_answer(directory: str | Path) -> tuple[RunRecord, Diagnosis]:
    """The run and its diagnosis, the same as when it was made, with the remedies that were tried for it.

    Raises RunUnreadable when it is no such run, is damaged, or was written by a newer nanprobe.
    """
    run = read_run(directory)
    diagnosis, verification = diagnose(run), read_verification(directory)
    return run, diagnosis if verification is None else diagnosis.with_verification(verification)

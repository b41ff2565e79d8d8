"""The shape of a run directory: its files, the version of their schema, and what a line of a trace can be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanprobe.errors import RunUnreadable
from nanprobe.records import (
    BatchRecord,
    CallRecord,
    DeepStep,
    ErrorRecord,
    ExternalRecord,
    GradRecord,
    InputRecord,
    OpRecord,
    ParameterInfo,
    Source,
    Specimen,
    StageName,
    StepRecord,
    TensorStats,
    UpdateRecord,
)

SCHEMA_VERSION = 1
RUN_FILE, DIAGNOSIS_FILE, TRACE_FILE, OUTPUT_FILE = "run.json", "diagnosis.json", "trace.jsonl", "output.log"
SWEEP_FILE = "sweep.json"

Record = StepRecord | DeepStep | CallRecord | BatchRecord | ErrorRecord

TAGS: dict[type, str] = {
    StepRecord: "step",
    DeepStep: "deep_step",
    CallRecord: "call",
    BatchRecord: "batch",
    ErrorRecord: "error",
}
CLASSES = {tag: cls for cls, tag in TAGS.items()}
ROWS: tuple[type[Any], ...] = (  # written as positional arrays
    Source,
    TensorStats,
    InputRecord,
    Specimen,
    OpRecord,
    ExternalRecord,
    GradRecord,
    UpdateRecord,
    ParameterInfo,
)
# The last two are a sweep's, read by nanprobe.saved_sweep; a stage's reader passes over them.
DICT_TYPES = ("header", "facts", "notice", "end", "parameters", "histogram", "element_update")


def check_version(document: Mapping[str, Any], path: Path) -> None:
    """Raises RunUnreadable when a document was written by a newer nanprobe."""
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunUnreadable(
            f"{path}: schema version {version}, this nanprobe reads up to {SCHEMA_VERSION}; upgrade nanprobe to read it"
        )


def trace_path(directory: str | Path, *, rerun: bool = False) -> Path:
    """Where a stage's trace goes; for a re-run the first `trace-rerun-NN.jsonl` that is not there yet."""
    directory = Path(directory)
    if not rerun:
        return directory / TRACE_FILE
    number = 1
    while (path := directory / f"trace-rerun-{number:02d}.jsonl").exists():
        number += 1
    return path


def stage_directory(run_directory: str | Path, stage: StageName) -> Path:
    """Where a stage keeps its trace and its output."""
    return Path(run_directory) / "stages" / stage.value

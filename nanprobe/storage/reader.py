"""One stage's trace as it is read: whole, cut short, or while it is still written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanprobe.errors import RunUnreadable
from nanprobe.records import Outcome, StageName, StageTrace
from nanprobe.storage.coding import Decoder
from nanprobe.storage.layout import CLASSES, TRACE_FILE, check_version
from nanprobe.storage.values import from_json_value


class TraceTail:
    """Follows a trace while another process writes it; sees its steps only, and does not decode the rest."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._offset, self._partial = Path(path), 0, b""

    def poll(self) -> Iterator[dict[str, Any]]:
        """The step lines completed since the last poll, as dictionaries of StepRecord's fields, in order."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        self._offset += len(new)
        *lines, self._partial = (self._partial + new).split(b"\n")
        for line in lines:
            if line.startswith(b'{"type":"step"'):
                step = json.loads(line)
                for name in ("loss", "loss_scale"):
                    step[name] = from_json_value(step[name])
                yield step


def read_stage(directory: str | Path, *, whole: bool = False) -> StageTrace:
    """The stage as far as it was written; one that has no end line crashed, and says so.

    Raises RunUnreadable when there is no such directory, or a line that is not the last is broken; when the stage is
    known to be `whole`, also for a trace without an end, which lost it later.
    """
    directory = Path(directory)
    if not whole and directory.is_dir() and not (directory / TRACE_FILE).exists():
        reason = "the process died before it could write anything"
        return StageTrace(_name_of(directory), Outcome.CRASHED, "float32", reason=reason)
    trace = _read_trace(directory / TRACE_FILE, _name_of(directory), whole)
    deep = {step.step: step for step in trace.deep_steps}
    for path in sorted(directory.glob("trace-rerun-*.jsonl")):
        deep.update((step.step, step) for step in _read_trace(path, trace.name).deep_steps)
    return replace(trace, deep_steps=tuple(deep[step] for step in sorted(deep)))


def _name_of(directory: Path) -> StageName:
    """The stage a directory is named after, for a trace that lost its header."""
    return next((name for name in StageName if name.value == directory.name), StageName.FP32)


def read_lines(path: Path, tag: str) -> list[dict[str, Any]]:
    """The lines of one type in a trace, in order; those of other types are not decoded. Raises RunUnreadable."""
    start = f'{{"type":"{tag}"'.encode()
    return [line for _, line in _read_lines(path, start)]


def _read_trace(path: Path, name: StageName, whole: bool = False) -> StageTrace:
    decoder = Decoder({})
    records: dict[str, list[Any]] = {tag: [] for tag in CLASSES}
    facts: dict[str, object] = {}
    about: dict[str, Any] = {"name": name, "outcome": Outcome.CRASHED, "dtype": "float32"}
    notices, ended = [], False
    for number, line in _read_lines(path):
        try:
            tag = line["type"]
            if tag == "format":
                check_version(line, path)
                decoder = Decoder(line["rows"])
            elif tag in CLASSES:
                records[tag].append(decoder.record(CLASSES[tag], line))
            elif tag in ("header", "end", "parameters"):
                ended = ended or tag == "end"
                about.update(decoder.named(StageTrace, line))
            elif tag == "facts":
                facts.update(from_json_value(line["facts"]))
            elif tag == "notice":
                notices.append(line["text"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunUnreadable(f"{path}: line {number} is no record nanprobe knows: {error!r}") from error
    if whole and not ended:
        raise RunUnreadable(f"{path}: cut short: the run came to its end, but this trace has lost its own")
    trace = StageTrace(
        **about,
        steps=tuple(records["step"]),
        deep_steps=tuple(records["deep_step"]),
        calls=tuple(records["call"]),
        batches=tuple(records["batch"]),
        error=records["error"][-1] if records["error"] else None,
        facts=facts,
        notices=tuple(notices),
    )
    return trace if ended else replace(trace, reason=_explain_missing_end(trace))


def _explain_missing_end(trace: StageTrace) -> str:
    if trace.error:
        return f"{trace.error.kind}: {trace.error.message}"
    after = f"after step {trace.steps[-1].index}" if trace.steps else "before the first step"
    return f"the process died {after} without saying why (killed, out of memory, or a crash in native code)"


def _read_lines(path: Path, start: bytes = b"") -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a trace with their numbers; a broken last line, as a killed process leaves, is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunUnreadable(f"{path}: cannot read the stage's trace: {error.strerror or error}") from error
    last = max((number for number, line in enumerate(lines) if line), default=-1)
    for number, line in enumerate(lines):
        if not line or not line.startswith(start):
            continue
        try:
            decoded = json.loads(line)
        except ValueError as error:
            if number == last:
                return
            raise RunUnreadable(f"{path}: line {number + 1} is not JSON; the trace was damaged") from error
        yield number + 1, decoded

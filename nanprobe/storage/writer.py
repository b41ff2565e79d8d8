"""One stage's trace as it is written: a line a record, on disk when `write` returns."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from nanprobe.records import DeepStep, Outcome, ParameterInfo, StageName, StageTrace
from nanprobe.storage.coding import Encode, Shared, encode_source, encoder_of, hints_of, row_encoder
from nanprobe.storage.layout import DICT_TYPES, ROWS, SCHEMA_VERSION, TAGS, Record
from nanprobe.storage.values import to_json_value

_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


class TraceWriter:
    """Appends records to a trace, each line whole and on disk when `write` returns.

    An existing trace is continued; a last line that was cut short is dropped first.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if not _cut_half_line(path):
            rows = {cls.__name__: [f.name for f in fields(cls)] for cls in ROWS}
            self.write({"type": "format", "schema_version": SCHEMA_VERSION, "rows": rows})

    def write(self, record: Record | tuple[ParameterInfo, ...] | Mapping[str, object]) -> None:
        """Append one record, the tuple of watched parameters, or a dictionary with a known "type"."""
        self._file.write(_encode_line(record).encode("ascii") + b"\n")
        self._file.flush()

    def write_header(self, name: StageName, dtype: str, *, as_written: bool = False, device: str = "cpu") -> None:
        """What the stage is; written again when more is known, the last one counts."""
        self.write({"type": "header", "name": name, "dtype": dtype, "as_written": as_written, "device": device})

    def write_facts(self, facts: Mapping[str, object]) -> None:
        """What the script was seen to use; later facts are added to earlier ones."""
        self.write({"type": "facts", "facts": facts})

    def write_notice(self, text: str) -> None:
        """One thing the user should know about how the stage was run."""
        self.write({"type": "notice", "text": text})

    def write_end(
        self, outcome: Outcome, *, reason: str | None = None, seconds: float = 0.0, contained_update: int | None = None
    ) -> None:
        """How the stage ended; a trace without it is one of a process that died."""
        end = {"outcome": outcome, "reason": reason, "seconds": seconds, "contained_update": contained_update}
        self.write({"type": "end", **end})

    def close(self) -> None:
        """Close the file; writing after it fails."""
        self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _cut_half_line(path: Path) -> int:
    """Cut what stands after the last newline, as a killed process leaves it; returns the bytes kept."""
    with path.open("rb+") as file:
        end = position = file.seek(0, os.SEEK_END)
        while position:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            file.truncate(position)
        return position


def _encode_line(record: Record | tuple[ParameterInfo, ...] | Mapping[str, object]) -> str:
    if isinstance(record, tuple):
        encode = row_encoder(ParameterInfo)
        return _dumps({"type": "parameters", "parameters": [encode(item, None) for item in record]})
    if isinstance(record, Mapping):
        if record.get("type") not in ("format", *DICT_TYPES):
            raise ValueError(f"trace line of type {record.get('type')!r}; expected one of {', '.join(DICT_TYPES)}")
        return _dumps(to_json_value(record))
    cls: Any = type(record)
    shared: Shared | None = {} if cls is DeepStep else None
    line: dict[str, Any] = {"type": TAGS[cls]}
    for name, encode_field in _line_encoders(cls):
        value = getattr(record, name)
        line[name] = encode_field(value, shared) if encode_field else value
    if shared is not None:
        line["shared"] = [item if isinstance(item, str) else encode_source(item, None) for item in shared]  # type: ignore[arg-type]
    return _dumps(line)


@cache
def _line_encoders(cls: Any) -> list[tuple[str, Encode | None]]:
    hints = hints_of(cls)
    return [(f.name, encoder_of(hints[f.name])) for f in fields(cls)]


def write_stage(path: str | Path, trace: StageTrace) -> None:
    """Write a whole stage as the child process would have, record by record."""
    with TraceWriter(path) as writer:
        writer.write_header(trace.name, trace.dtype, as_written=trace.as_written, device=trace.device)
        writer.write_facts(trace.facts)
        writer.write(trace.parameters)
        records: tuple[Record, ...] = (*trace.batches, *trace.calls, *trace.steps, *trace.deep_steps)
        for record in records:
            writer.write(record)
        for text in trace.notices:
            writer.write_notice(text)
        if trace.error:
            writer.write(trace.error)
        writer.write_end(
            trace.outcome, reason=trace.reason, seconds=trace.seconds, contained_update=trace.contained_update
        )

"""The run directory: records written line by line as they are measured, and read back whole or cut short.

    RUN/run.json                           what was run: target, plan, versions
    RUN/stages/<stage>/trace.jsonl         one record a line, flushed as the stage runs
    RUN/stages/<stage>/trace-rerun-*.jsonl the same, of a second run for its deep steps only
    RUN/stages/<stage>/output.log          what the script printed
    RUN/diagnosis.json                     the answer, as in `nanprobe.reports.document`

Every line of a trace is valid JSON with a "type". Records inside a line are positional arrays, trailing defaults left
out; the first line names their fields, so a trace stays readable when a record gains one. Each deep step carries a list
of the strings and source lines it repeats and refers to them by number. Numbers that are not finite are written as
"NaN", "Infinity", "-Infinity".
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from enum import Enum
from functools import cache
from operator import attrgetter
from pathlib import Path
from types import NoneType, TracebackType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from nanprobe.errors import OutputNotWritable, RunUnreadable
from nanprobe.plan import RunPlan
from nanprobe.records import (
    BatchRecord,
    CallRecord,
    DeepStep,
    ErrorRecord,
    ExternalRecord,
    GradRecord,
    InputRecord,
    OpRecord,
    Outcome,
    ParameterInfo,
    RunRecord,
    Source,
    Specimen,
    StageName,
    StageTrace,
    StepRecord,
    Target,
    TensorStats,
    UpdateRecord,
)

SCHEMA_VERSION = 1
RUN_FILE, DIAGNOSIS_FILE, TRACE_FILE, OUTPUT_FILE = "run.json", "diagnosis.json", "trace.jsonl", "output.log"

Record = StepRecord | DeepStep | CallRecord | BatchRecord | ErrorRecord
Shared = dict[object, int]  # strings and Sources of one line -> their place in its "shared" list
Encode = Callable[[Any, Shared | None], Any]
Decode = Callable[[Any, list[Any] | None], Any]

_TAGS: dict[type, str] = {
    StepRecord: "step",
    DeepStep: "deep_step",
    CallRecord: "call",
    BatchRecord: "batch",
    ErrorRecord: "error",
}
_CLASSES = {tag: cls for cls, tag in _TAGS.items()}
_ROWS: tuple[type[Any], ...] = (  # written as positional arrays
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
# The last two are a sweep's, read by nanprobe.sweep; a stage's reader passes over them.
_DICT_TYPES = ("header", "facts", "notice", "end", "parameters", "histogram", "element_update")
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode


# numbers and free values


def name_number(value: float) -> float | str:
    """A number as JSON can hold it: itself when finite, else "NaN", "Infinity" or "-Infinity"."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def to_json_value(value: object) -> Any:
    """Any value as strict JSON; tuples and sets become lists, enums their values, what JSON cannot hold its text."""
    if isinstance(value, Enum):
        return to_json_value(value.value)
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return name_number(float(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((to_json_value(item) for item in value), key=str)
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    return str(value)


def from_json_value(value: Any) -> Any:
    """The inverse of `to_json_value` for free dictionaries; a string that names a non-finite number becomes it."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: from_json_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json_value(item) for item in value]
    return value


# encoders and decoders, made from the records' type hints


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _split_optional(hint: Any) -> tuple[Any, bool]:
    """The hint without `| None`, and whether it had it."""
    args = get_args(hint)
    if NoneType not in args or (get_origin(hint) not in (Union, UnionType)):
        return hint, False
    (rest,) = (arg for arg in args if arg is not NoneType)
    return rest, True


def _item_hint(hint: Any) -> Any:
    """The item type of `tuple[T, ...]`; None for a tuple of fixed length or no tuple."""
    args = get_args(hint)
    return args[0] if get_origin(hint) is tuple and len(args) == 2 and args[1] is Ellipsis else None


@cache
def _encoder(hint: Any) -> Encode | None:
    """The function that encodes values of a type; None when they are JSON already."""
    inner, optional = _split_optional(hint)
    if optional:
        encode = _encoder(inner)
        return None if encode is None else lambda value, shared: None if value is None else encode(value, shared)
    if inner in (int, bool):
        return None
    if inner is float:
        return lambda value, shared: name_number(value)
    if inner is str:
        return lambda value, shared: value if shared is None else shared.setdefault(value, len(shared))
    if inner is Source:
        return _encode_source
    if is_dataclass(inner):
        return _row_encoder(inner)
    if isinstance(inner, type) and issubclass(inner, Enum):
        return lambda value, shared: value.value
    if get_origin(inner) is tuple:
        return _tuple_encoder(inner)
    return lambda value, shared: to_json_value(value)


def _encode_source(source: Source, shared: Shared | None) -> Any:
    if shared is not None:
        return shared.setdefault(source, len(shared))
    return [source.file, source.line, source.code, source.function]


def _tuple_encoder(hint: Any) -> Encode | None:
    item = _item_hint(hint)
    if item is None:
        parts = [_encoder(arg) for arg in get_args(hint)]
        return lambda value, shared: [e(v, shared) if e else v for e, v in zip(parts, value, strict=True)]
    encode = _encoder(item)
    return None if encode is None else lambda value, shared: [encode(v, shared) for v in value] if value else ()


def _row_encoder(cls: Any) -> Encode:
    hints, every = _hints(cls), fields(cls)
    encoders = [_encoder(hints[f.name]) for f in every]
    read = attrgetter(*(f.name for f in every))
    defaults = [f.default if f.default_factory is MISSING else f.default_factory() for f in every]

    def encode(record: Any, shared: Shared | None) -> list[Any]:
        values = read(record)
        count = len(values)
        while count and values[count - 1] == defaults[count - 1]:
            count -= 1
        return [e(v, shared) if e else v for e, v in zip(encoders, values[:count], strict=False)]

    return encode


class _Decoder:
    """Decodes the lines of one trace, by the field names its first line gives."""

    def __init__(self, rows: Mapping[str, list[str]]) -> None:
        self._rows = rows
        self._made: dict[Any, Decode | None] = {}

    def of(self, hint: Any) -> Decode | None:
        """The function that decodes values of a type; None when JSON holds them as they are."""
        if hint not in self._made:
            self._made[hint] = self._make(hint)
        return self._made[hint]

    def record(self, cls: Any, line: Mapping[str, Any]) -> Any:
        """The record of a line that names its fields; fields this version does not know are left out."""
        shared = line.get("shared")
        if shared is not None:
            shared = [Source(*item) if isinstance(item, list) else item for item in shared]
        return cls(**self.named(cls, line, shared))

    def named(self, cls: Any, line: Mapping[str, Any], shared: list[Any] | None = None) -> dict[str, Any]:
        """The fields of a class that a line gives, decoded."""
        values = {}
        for name, hint in _hints(cls).items():
            if name in line:
                decode = self.of(hint)
                values[name] = decode(line[name], shared) if decode else line[name]
        return values

    def _make(self, hint: Any) -> Decode | None:
        inner, optional = _split_optional(hint)
        if optional:
            decode = self.of(inner)
            return None if decode is None else lambda value, shared: None if value is None else decode(value, shared)
        if inner in (int, bool):
            return None
        if inner is float:
            return lambda value, shared: float(value)
        if inner is str:
            return lambda value, shared: value if shared is None else shared[value]
        if inner is Source:
            return lambda value, shared: Source(*value) if shared is None else shared[value]
        if is_dataclass(inner):
            return self._row(inner)
        if isinstance(inner, type) and issubclass(inner, Enum):
            members = {member.value: member for member in inner}
            return lambda value, shared: members[value]
        if get_origin(inner) is tuple:
            return self._tuple(inner)
        return lambda value, shared: from_json_value(value)

    def _tuple(self, hint: Any) -> Decode:
        item = _item_hint(hint)
        if item is None:
            parts = [self.of(arg) for arg in get_args(hint)]
            return lambda value, shared: tuple(d(v, shared) if d else v for d, v in zip(parts, value, strict=True))
        decode = self.of(item)
        if decode is None:
            return lambda value, shared: tuple(value)
        return lambda value, shared: tuple([decode(v, shared) for v in value])

    def _row(self, cls: Any) -> Decode:
        hints, known = _hints(cls), [f.name for f in fields(cls)]
        names = self._rows.get(cls.__name__, known)
        decoders = [self.of(hints[name]) if name in hints else None for name in names]
        if names == known:
            return lambda row, shared: cls(*[d(v, shared) if d else v for d, v in zip(decoders, row, strict=False)])
        return lambda row, shared: cls(
            **{n: d(v, shared) if d else v for n, d, v in zip(names, decoders, row, strict=False) if n in hints}
        )


# one stage: writing


class TraceWriter:
    """Appends records to a trace, each line whole and on disk when `write` returns.

    An existing trace is continued; a last line that was cut short is dropped first.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if not _cut_half_line(path):
            rows = {cls.__name__: [f.name for f in fields(cls)] for cls in _ROWS}
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
        encode = _row_encoder(ParameterInfo)
        return _dumps({"type": "parameters", "parameters": [encode(item, None) for item in record]})
    if isinstance(record, Mapping):
        if record.get("type") not in ("format", *_DICT_TYPES):
            raise ValueError(f"trace line of type {record.get('type')!r}; expected one of {', '.join(_DICT_TYPES)}")
        return _dumps(to_json_value(record))
    cls: Any = type(record)
    shared: Shared | None = {} if cls is DeepStep else None
    line: dict[str, Any] = {"type": _TAGS[cls]}
    for name, encode_field in _line_encoders(cls):
        value = getattr(record, name)
        line[name] = encode_field(value, shared) if encode_field else value
    if shared is not None:
        line["shared"] = [item if isinstance(item, str) else _encode_source(item, None) for item in shared]  # type: ignore[arg-type]
    return _dumps(line)


@cache
def _line_encoders(cls: Any) -> list[tuple[str, Encode | None]]:
    hints = _hints(cls)
    return [(f.name, _encoder(hints[f.name])) for f in fields(cls)]


# one stage: reading


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


def read_stage(directory: str | Path) -> StageTrace:
    """The stage as far as it was written; one that has no end line crashed, and says so.

    Raises RunUnreadable when there is no such directory, or a line that is not the last is broken.
    """
    directory = Path(directory)
    if directory.is_dir() and not (directory / TRACE_FILE).exists():
        reason = "the process died before it could write anything"
        return StageTrace(_name_of(directory), Outcome.CRASHED, "float32", reason=reason)
    trace = _read_trace(directory / TRACE_FILE, _name_of(directory))
    deep = {step.step: step for step in trace.deep_steps}
    for path in sorted(directory.glob("trace-rerun-*.jsonl")):
        deep.update((step.step, step) for step in _read_trace(path, trace.name).deep_steps)
    return replace(trace, deep_steps=tuple(deep[step] for step in sorted(deep)))


def _name_of(directory: Path) -> StageName:
    """The stage a directory is named after, for a trace that lost its header."""
    return next((name for name in StageName if name.value == directory.name), StageName.FP32)


def _read_trace(path: Path, name: StageName) -> StageTrace:
    decoder = _Decoder({})
    records: dict[str, list[Any]] = {tag: [] for tag in _CLASSES}
    facts: dict[str, object] = {}
    about: dict[str, Any] = {"name": name, "outcome": Outcome.CRASHED, "dtype": "float32"}
    notices, ended = [], False
    for number, line in _read_lines(path):
        try:
            tag = line["type"]
            if tag == "format":
                _check_version(line, path)
                decoder = _Decoder(line["rows"])
            elif tag in _CLASSES:
                records[tag].append(decoder.record(_CLASSES[tag], line))
            elif tag in ("header", "end", "parameters"):
                ended = ended or tag == "end"
                about.update(decoder.named(StageTrace, line))
            elif tag == "facts":
                facts.update(from_json_value(line["facts"]))
            elif tag == "notice":
                notices.append(line["text"])
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise RunUnreadable(f"{path}: line {number} is no record nanprobe knows: {error!r}") from error
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


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The lines of a trace with their numbers; a broken last line, as a killed process leaves, is passed over."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise RunUnreadable(f"{path}: cannot read the stage's trace: {error.strerror or error}") from error
    last = max((number for number, line in enumerate(lines) if line), default=-1)
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            decoded = json.loads(line)
        except ValueError as error:
            if number == last:
                return
            raise RunUnreadable(f"{path}: line {number + 1} is not JSON; the trace was damaged") from error
        yield number + 1, decoded


# the whole run


def write_run(run: RunRecord, plan: RunPlan | None = None) -> None:
    """Write run.json, and the trace of each stage that has not written its own (a skipped one, say)."""
    directory = Path(run.directory)
    asked = to_json_value(plan) if plan else {"steps": run.steps, "seed": run.seed}
    asked["stages"] = [stage.value for stage in (plan.stages if plan else [trace.name for trace in run.stages])]
    head = {"schema_version": SCHEMA_VERSION, "nanprobe": run.nanprobe_version, "torch": run.torch_version}
    document = {**head, "device": run.device, "target": run.target, "plan": asked, "notices": run.notices}
    write_json(directory / RUN_FILE, document)
    for trace in run.stages:
        path = stage_directory(directory, trace.name) / TRACE_FILE
        if not path.exists():
            write_stage(path, trace)


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


def write_document(run_directory: str | Path, document: Mapping[str, object]) -> None:
    """Write the answer's JSON document beside the records it came from. Raises OutputNotWritable."""
    write_json(Path(run_directory) / DIAGNOSIS_FILE, document)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file whole or not at all. Raises OutputNotWritable."""
    draft = path.with_name(path.name + ".draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(to_json_value(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot write: {error.strerror or error}") from error


def read_run(directory: str | Path) -> RunRecord:
    """The run in a directory; a stage that was asked for and left no trace is a skipped one.

    Raises RunUnreadable when it is not a run directory, is damaged, or was written by a newer nanprobe.
    """
    directory = Path(directory)
    document = _read_run_file(directory)
    try:
        plan, target = document["plan"], document["target"]
        return RunRecord(
            target=Target(target["path"], tuple(target["argv"]), target["mode"]),
            stages=tuple(_read_stage_or_skipped(directory, StageName(name)) for name in plan["stages"]),
            device=document["device"],
            torch_version=document["torch"],
            nanprobe_version=document["nanprobe"],
            steps=plan["steps"],
            seed=plan["seed"],
            directory=str(directory),
            notices=tuple(document["notices"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunUnreadable(f"{directory / RUN_FILE}: an entry is missing or wrong: {error}") from error


def _read_stage_or_skipped(directory: Path, name: StageName) -> StageTrace:
    stage = stage_directory(directory, name)
    if stage.is_dir():
        return read_stage(stage)
    return StageTrace(name, Outcome.SKIPPED, "float32", reason="the run ended before this stage began")


def _read_run_file(directory: Path) -> dict[str, Any]:
    path = directory / RUN_FILE
    if not directory.is_dir():
        raise RunUnreadable(f"{directory}: no such directory; expected one that `nanprobe diagnose` made")
    if not path.is_file():
        raise RunUnreadable(f"{directory}: not a nanprobe run directory, it has no {RUN_FILE}")
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RunUnreadable(f"{path}: cut short or not JSON ({error})") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise RunUnreadable(f"{path}: was not written by nanprobe, it has no schema_version")
    _check_version(document, path)
    return document


def _check_version(document: Mapping[str, Any], path: Path) -> None:
    version = document.get("schema_version")
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RunUnreadable(
            f"{path}: schema version {version}, this nanprobe reads up to {SCHEMA_VERSION}; upgrade nanprobe to read it"
        )


def new_run_directory(output: str | None, target: Target) -> Path:
    """A new, empty run directory: `output`, or one of its own name in the user's cache. Nothing is ever overwritten.

    Raises OutputNotWritable when it holds something already, or cannot be made.
    """
    path = Path(output).expanduser().absolute() if output else _default_directory(target)
    try:
        if path.exists() and not path.is_dir():
            raise OutputNotWritable(f"{path}: is a file; give a directory that does not exist yet, or is empty")
        if path.is_dir() and any(path.iterdir()):
            what = (
                "already holds a nanprobe run"
                if (path / RUN_FILE).exists()
                else "is not empty, and is not a nanprobe run"
            )
            raise OutputNotWritable(f"{path}: {what}; give a directory that does not exist yet, or is empty")
        (path / "stages").mkdir(parents=True)
    except OSError as error:
        raise OutputNotWritable(f"{path}: cannot make the run directory: {error.strerror or error}") from error
    return path


def _default_directory(target: Target) -> Path:
    """Source: XDG Base Directory Specification; a relative XDG_CACHE_HOME is to be ignored."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not cache.is_absolute():
        cache = Path.home() / ".cache"
    name = target.path.rpartition(".")[2] if target.mode == "module" else Path(target.path).stem
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:40] or "run"
    return cache / "nanprobe" / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}-{secrets.token_hex(2)}"

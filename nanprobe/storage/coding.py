"""Encoders and decoders of records, made from their type hints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from nanprobe.records import Source
from nanprobe.storage.values import from_json_value, name_number, to_json_value

Shared = dict[object, int]  # strings and Sources of one line -> their place in its "shared" list
Encode = Callable[[Any, Shared | None], Any]
Decode = Callable[[Any, list[Any] | None], Any]


@cache
def hints_of(cls: Any) -> dict[str, Any]:
    """A record's fields and their types, in order."""
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
def encoder_of(hint: Any) -> Encode | None:
    """The function that encodes values of a type; None when they are JSON already."""
    inner, optional = _split_optional(hint)
    if optional:
        encode = encoder_of(inner)
        return None if encode is None else lambda value, shared: None if value is None else encode(value, shared)
    if inner in (int, bool):
        return None
    if inner is float:
        return lambda value, shared: name_number(value)
    if inner is str:
        return lambda value, shared: value if shared is None else shared.setdefault(value, len(shared))
    if inner is Source:
        return encode_source
    if is_dataclass(inner):
        return row_encoder(inner)
    if isinstance(inner, type) and issubclass(inner, Enum):
        return lambda value, shared: value.value
    if get_origin(inner) is tuple:
        return _tuple_encoder(inner)
    return lambda value, shared: to_json_value(value)


def encode_source(source: Source, shared: Shared | None) -> Any:
    """A line of the user's code: its fields, or its place in the list of what a deep step repeats."""
    if shared is not None:
        return shared.setdefault(source, len(shared))
    return [source.file, source.line, source.code, source.function]


def _tuple_encoder(hint: Any) -> Encode | None:
    item = _item_hint(hint)
    if item is None:
        parts = [encoder_of(arg) for arg in get_args(hint)]
        return lambda value, shared: [e(v, shared) if e else v for e, v in zip(parts, value, strict=True)]
    encode = encoder_of(item)
    return None if encode is None else lambda value, shared: [encode(v, shared) for v in value] if value else ()


def row_encoder(cls: Any) -> Encode:
    """The function that writes a record as a positional array, trailing defaults left out."""
    hints, every = hints_of(cls), fields(cls)
    encoders = [encoder_of(hints[f.name]) for f in every]
    read = attrgetter(*(f.name for f in every))
    defaults = [f.default if f.default_factory is MISSING else f.default_factory() for f in every]

    def encode(record: Any, shared: Shared | None) -> list[Any]:
        values = read(record)
        count = len(values)
        while count and values[count - 1] == defaults[count - 1]:
            count -= 1
        return [e(v, shared) if e else v for e, v in zip(encoders, values[:count], strict=False)]

    return encode


class Decoder:
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
        for name, hint in hints_of(cls).items():
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
        hints, known = hints_of(cls), [f.name for f in fields(cls)]
        names = self._rows.get(cls.__name__, known)
        decoders = [self.of(hints[name]) if name in hints else None for name in names]
        if names == known:
            return lambda row, shared: cls(*[d(v, shared) if d else v for d, v in zip(decoders, row, strict=False)])
        return lambda row, shared: cls(
            **{n: d(v, shared) if d else v for n, d, v in zip(names, decoders, row, strict=False) if n in hints}
        )

"""A recipe's file as plain data with line numbers. Only plain YAML is read: no tags, no anchors, nothing is built.

Scalars keep the text they were written with, so `args: [1e-3, no, 010]` reaches the script as it stands there, and
`2**16` is a number to whoever wants one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import yaml

from nanprobe.errors import RecipeInvalid

MAX_BYTES = 65_536  # our choice: a hundred times a long recipe
MAX_DEPTH = 8  # our choice: twice the deepest that a recipe needs
_NULLS = ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value, as it was written."""

    text: str
    quoted: bool
    line: int  # 1-based

    @property
    def is_null(self) -> bool:
        """Whether nothing is said: an empty value, `~` or `null`."""
        return not self.quoted and self.text in _NULLS


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Keys and values, in the order they were written."""

    line: int
    entries: dict[str, Node] = field(default_factory=dict)


Node: TypeAlias = Scalar | Sequence | Mapping


def read_file(path: Path, shown: str) -> str:
    """The file's text. Raises RecipeInvalid, with the name it is `shown` under, where there is none to read."""
    if not path.exists():
        raise RecipeInvalid(f"{shown}: no such file")
    if not path.is_file():
        raise RecipeInvalid(f"{shown}: is not a regular file; give a recipe")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeInvalid(f"{shown}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        size = path.stat().st_size
        raise RecipeInvalid(f"{shown}: is {size:,} bytes long; a recipe has at most {MAX_BYTES:,}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeInvalid(f"{shown}: is no text in UTF-8 (byte {error.start}); give a recipe") from error


def parse_yaml(text: str, shown: str) -> Mapping:
    """The mapping in a text. Raises RecipeInvalid with line and column."""
    try:
        root = _Builder().build(text)
    except _Refused as refused:
        raise RecipeInvalid(f"{shown}: line {refused.line}, column {refused.column}: {refused}") from refused
    except yaml.MarkedYAMLError as error:
        raise RecipeInvalid(f"{shown}: {_explain(error)}") from error
    except yaml.YAMLError as error:
        raise RecipeInvalid(f"{shown}: no valid YAML: {' '.join(str(error).split())}") from error
    if root is None or (isinstance(root, Scalar) and root.is_null):
        raise RecipeInvalid(f"{shown}: is empty; a recipe says for example `target: train.py`")
    if not isinstance(root, Mapping):
        what = "a list" if isinstance(root, Sequence) else f"the text {root.text[:40]!r}"
        raise RecipeInvalid(f"{shown}: holds {what}; a recipe is keys and values, like `target: train.py`")
    return root


def _explain(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    hint = "; indent with spaces" if error.problem and "'\\t'" in error.problem else ""
    context = f" {error.context}" if error.context else ""
    return f"{place}no valid YAML{context}: {error.problem}{hint}"


class _Refused(Exception):
    """YAML that is valid and has no place in a recipe."""

    def __init__(self, message: str, event: yaml.Event) -> None:
        super().__init__(message)
        self.line, self.column = _line(event), event.start_mark.column + 1 if event.start_mark else 1


def _line(event: yaml.Event) -> int:
    """Where an event begins, counted from 1."""
    return event.start_mark.line + 1 if event.start_mark else 1


class _Builder:
    """Builds nodes from the parser's events, one after the other; never deeper than MAX_DEPTH."""

    def __init__(self) -> None:
        self._root: Node | None = None
        self._open: list[Sequence | Mapping] = []
        self._keys: list[Scalar | None] = []  # of each open container the key whose value is awaited
        self._documents = 0

    def build(self, text: str) -> Node | None:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            self._refuse_what_is_not_plain(event)
            if isinstance(event, yaml.DocumentStartEvent):
                self._documents += 1
                if self._documents > 1:
                    raise _Refused("a second document begins here; a recipe is one", event)
            elif isinstance(event, yaml.ScalarEvent):
                self._add(Scalar(event.value, event.style is not None, _line(event)), event)
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._open.pop()
                self._keys.pop()
        return self._root

    def _refuse_what_is_not_plain(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.AliasEvent):
            raise _Refused(f"the alias *{event.anchor}: aliases are refused; write the value out", event)
        if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
            raise _Refused(f"the anchor &{event.anchor}: anchors are refused; write the value out", event)
        tag = getattr(event, "tag", None)
        if tag is not None:
            shown = tag.replace("tag:yaml.org,2002:", "!!")
            raise _Refused(f"the tag {shown}: tags are refused; a recipe has plain values only", event)

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        if len(self._open) == MAX_DEPTH:
            raise _Refused(f"nested deeper than {MAX_DEPTH} levels, which no recipe needs", event)
        line = _line(event)
        node: Sequence | Mapping = Mapping(line) if isinstance(event, yaml.MappingStartEvent) else Sequence(line)
        self._add(node, event)
        self._open.append(node)
        self._keys.append(None)

    def _add(self, node: Node, event: yaml.Event) -> None:
        if not self._open:
            self._root = node
            return
        container, key = self._open[-1], self._keys[-1]
        if isinstance(container, Sequence):
            container.items.append(node)
        elif key is not None:
            container.entries[key.text] = node
            self._keys[-1] = None
        elif not isinstance(node, Scalar):
            raise _Refused("a list or a mapping stands where a key should be; a key is a word", event)
        elif node.text in container.entries:
            raise _Refused(f"the key {node.text!r} is given twice", event)
        else:
            self._keys[-1] = node

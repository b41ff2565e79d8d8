"""One mapping of a recipe, read key by key: every value is checked, and every problem noted with its path."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nanprobe.notation import parse_number, parse_whole
from nanprobe.recipe import reading
from nanprobe.recipe.reading import Node, Scalar

T = TypeVar("T")
LIKENESS = 0.7  # of two keys, from 0 to 1, from which one is taken for a slip of the other; our choice
MAX_SHOWN = 60  # characters of a wrong value in a message


class Problems:
    """Everything that is wrong with a recipe, in the order of the file."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._found: list[tuple[int, str]] = []

    def add(self, path: str, message: str, line: int) -> None:
        """Note one; `path` is the key with those above it: "scaler.growth_interval"."""
        self._found.append((line, f"{self._shown}: {path}: {message} (line {line})"))

    def lines(self) -> list[str]:
        """One line each."""
        return [text for _, text in sorted(self._found, key=lambda found: found[0])]


class Section:
    """The mapping under one key; the root has the path ""."""

    def __init__(self, node: reading.Mapping, path: str, problems: Problems) -> None:
        self._node, self._path, self._problems = node, path, problems

    def check_keys(self, known: Sequence[str], everywhere: Sequence[str] = ()) -> None:
        """Refuse keys that do not exist, naming the nearest one: here, or by its whole path anywhere in a recipe."""
        for key, node in self._node.entries.items():
            if key not in known:
                self._problems.add(self._join(key), f"no such key; {_suggest(key, known, everywhere)}", node.line)

    def refuse(self, key: str, message: str) -> None:
        """Note a problem with a key, or with the section itself where it does not have that key."""
        node = self._node.entries.get(key, self._node)
        self._problems.add(self._join(key), message, node.line)

    def has(self, key: str) -> bool:
        """Whether the key is there and says something."""
        node = self._node.entries.get(key)
        return node is not None and not (isinstance(node, Scalar) and node.is_null)

    def is_word(self, key: str) -> bool:
        """Whether the key has a single value."""
        return isinstance(self._node.entries.get(key), Scalar)

    def section(self, key: str) -> Section | None:
        """The mapping under a key."""
        if not self.has(key):
            return None
        node = self._node.entries[key]
        if isinstance(node, reading.Mapping):
            return Section(node, self._join(key), self._problems)
        self._wrong(key, node, "a mapping of keys and values")
        return None

    def text(self, key: str, what: str = "a text on one line") -> str | None:
        """A text without line breaks."""
        return self._one(key, what, lambda text: text if text.strip() and len(text.splitlines()) == 1 else None)

    def number(self, key: str, what: str, fits: Callable[[float], bool]) -> float | None:
        """A finite number that fits; `what` describes it in the message: "a number above 0"."""
        return self._one(key, what, lambda text: _keep_if(parse_number(text), fits))

    def whole(self, key: str, what: str, fits: Callable[[int], bool]) -> int | None:
        """A whole number that fits."""
        return self._one(key, what, lambda text: _keep_if(parse_whole(text), fits))

    def choice(self, key: str, choices: Mapping[str, T]) -> T | None:
        """One of a few words; case does not matter."""
        return self._one(key, f"one of {', '.join(choices)}", lambda text: choices.get(text.lower()))

    def pattern(self, key: str) -> str | None:
        """A regular expression."""
        return self._one(key, "a regular expression", lambda text: text if _compiles(text) else None)

    def choices(self, key: str, choices: Mapping[str, T], what: str | None = None) -> tuple[T, ...]:
        """Some of a few words: one, a list, or a text with commas."""
        return self._some(key, what or f"one of {', '.join(choices)}", lambda text: choices.get(text.lower()))

    def wholes(self, key: str, what: str, fits: Callable[[int], bool]) -> tuple[int, ...]:
        """Whole numbers: one, or a list."""
        return self._some(key, what, lambda text: _keep_if(parse_whole(text), fits))

    def numbers(self, key: str, what: str, fits: Callable[[float], bool]) -> tuple[float, ...]:
        """Finite numbers: one, or a list."""
        return self._some(key, what, lambda text: _keep_if(parse_number(text), fits))

    def arguments(self, key: str) -> tuple[str, ...]:
        """Arguments of a command: a list, or a text that is split as a shell would."""
        node = self._node.entries.get(key)
        if isinstance(node, Scalar) and self.has(key):
            try:
                return tuple(shlex.split(node.text))
            except ValueError as error:
                self.refuse(key, f"{_show(node)} is no list of arguments ({str(error).lower()})")
                return ()
        if node is None or isinstance(node, Scalar):
            return ()
        what = "a list of arguments, like [--epochs, 1]"
        return self._each(key, node, what, lambda text: None if "\0" in text else text, split=False)

    def _one(self, key: str, what: str, parse: Callable[[str], T | None]) -> T | None:
        if not self.has(key):
            return None
        node = self._node.entries[key]
        value = parse(node.text) if isinstance(node, Scalar) else None
        if value is None:
            self._wrong(key, node, what)
        return value

    def _some(self, key: str, what: str, parse: Callable[[str], T | None]) -> tuple[T, ...]:
        return self._each(key, self._node.entries[key], what, parse) if self.has(key) else ()

    def _each(
        self, key: str, node: Node, what: str, parse: Callable[[str], T | None], split: bool = True
    ) -> tuple[T, ...]:
        """The values of a list, or of one text with commas where it is to be `split`."""
        if isinstance(node, Scalar):
            parts: list[Node] = [Scalar(part.strip(), node.quoted, node.line) for part in node.text.split(",")]
            items = [(key, part) for part in (parts if split else [node])]
        elif isinstance(node, reading.Sequence):
            items = [(f"{key}[{index}]", item) for index, item in enumerate(node.items)]
        else:
            items = [(key, node)]
        values = []
        for name, item in items:
            plain = isinstance(item, Scalar) and not item.is_null
            value = parse(item.text) if plain and isinstance(item, Scalar) else None
            if value is None:
                self._wrong(name, item, what)
            else:
                values.append(value)
        return tuple(values)

    def _wrong(self, key: str, node: Node, what: str) -> None:
        self._problems.add(self._join(key), f"{_show(node)} is not {what}", node.line)

    def _join(self, key: str) -> str:
        return ".".join(part for part in (self._path, key) if part)


def _keep_if(value: T | None, fits: Callable[[T], bool]) -> T | None:
    return value if value is not None and fits(value) else None


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _show(node: Node) -> str:
    if isinstance(node, reading.Mapping):
        return "a mapping"
    if isinstance(node, reading.Sequence):
        return "a list"
    if node.is_null:
        return "nothing"
    text = node.text if len(node.text) <= MAX_SHOWN else node.text[:MAX_SHOWN] + "…"
    return text if text.isprintable() and text.strip() == text != "" else repr(text)


def _suggest(key: str, known: Sequence[str], everywhere: Sequence[str]) -> str:
    whole = [path for path in everywhere if path.rpartition(".")[2] == key]
    near = whole or difflib.get_close_matches(key, known, 1, LIKENESS)
    if not near:
        last = {path.rpartition(".")[2]: path for path in everywhere}
        near = [last[name] for name in difflib.get_close_matches(key, last, 1, LIKENESS)]
    return f"did you mean {near[0]}?" if near else f"expected some of {', '.join(known)}"

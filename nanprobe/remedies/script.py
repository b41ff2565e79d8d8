"""A user's file as a syntax tree: which statement, call or function a line belongs to."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


_COMPOUND = (
    ast.If, ast.For, ast.While, ast.With, ast.Try, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.AsyncFor,
    ast.AsyncWith, ast.Match,
)  # fmt: skip


# Need no brackets as an operand or before a dot.
_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Tuple, ast.List, ast.Dict)


class NotEditable(Exception):
    """A change that the text does not allow: several statements on one line, a line that is not there."""


@dataclass(frozen=True)
class Script:
    """One file's text with its tree. Raises SyntaxError for what is no Python."""

    path: str
    text: str
    tree: ast.Module = field(init=False, compare=False, repr=False)
    _starts: tuple[int, ...] = field(init=False, compare=False, repr=False)  # offset of each line

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", ast.parse(self.text))
        starts = [0]
        for line in self.text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        object.__setattr__(self, "_starts", tuple(starts))

    def line(self, number: int) -> str:
        """A line's text, 1-based, without its end."""
        return self.text[self._starts[number - 1] : self._starts[number]].rstrip("\r\n")

    def source(self, node: ast.AST) -> str:
        """The text of a node, as the user wrote it."""
        start, end = self.span(node)
        return self.text[start:end]

    def operand(self, node: ast.AST) -> str:
        """The text of a node, in brackets where it could fall apart before a dot or beside an operator."""
        text = self.source(node)
        return text if isinstance(node, _ATOMS) else f"({text})"

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Where a node's text begins and ends."""
        n: ast.expr = node  # type: ignore[assignment]
        assert n.end_lineno is not None and n.end_col_offset is not None
        return self._offset(n.lineno, n.col_offset), self._offset(n.end_lineno, n.end_col_offset)

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that a line belongs to; the head of a compound one counts as its line."""
        found = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.stmt) or not node.lineno <= line <= _last_line(node):
                continue
            if found is None or (node.lineno, -_last_line(node)) >= (found.lineno, -_last_line(found)):
                found = node
        return found

    def whole_statement(self, line: int) -> ast.stmt:
        """The same. Raises NotEditable when there is none."""
        statement = self.statement(line)
        if statement is None:
            raise NotEditable(f"no statement at line {line}")
        return statement

    def method_call(self, line: int, name: str) -> tuple[ast.Call, str]:
        """The call of a method at a line, and the text of its object. Raises NotEditable when there is none."""
        for node in self.expressions(line):
            if isinstance(node, ast.Call) and call_name(node) == name and isinstance(node.func, ast.Attribute):
                return node, self.source(node.func.value)
        raise NotEditable(f"no call of {name} at line {line}")

    def function(self, line: int) -> ast.FunctionDef | None:
        """The innermost function that a line belongs to."""
        found = None
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.FunctionDef) or not node.lineno <= line <= (node.end_lineno or node.lineno):
                continue
            if found is None or node.lineno > found.lineno:
                found = node
        return found

    def owner(self, function: ast.FunctionDef) -> ast.ClassDef | None:
        """The class a method belongs to."""
        classes = (n for n in ast.walk(self.tree) if isinstance(n, ast.ClassDef))
        return next((c for c in classes if function in c.body), None)

    def expressions(self, line: int) -> Iterator[ast.expr]:
        """Every expression of the statement at a line that stands on this line, outermost first."""
        statement = self.statement(line)
        if statement is None:
            return
        for node in ast.walk(statement):
            if isinstance(node, ast.expr) and node.lineno <= line <= (node.end_lineno or node.lineno):
                yield node

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Every call of a function or method of one of these names, in the order of the text."""
        found = (n for n in ast.walk(self.tree) if isinstance(n, ast.Call) and call_name(n) in names)
        yield from sorted(found, key=lambda n: (n.lineno, n.col_offset))

    def block_of(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that this one stands in."""
        for node in ast.walk(self.tree):
            for block in _blocks(node):
                if any(s is statement for s in block):
                    return block
        return []

    def names(self) -> set[str]:
        """Every name the file uses, for choosing one that is free."""
        named = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}
        defined = {n.name for n in ast.walk(self.tree) if isinstance(n, (*_FUNCTIONS, ast.ClassDef))}
        return named | defined

    def indent(self, statement: ast.stmt) -> str:
        """The white space before a statement. Raises NotEditable when something else stands before it."""
        first = min((d.lineno for d in getattr(statement, "decorator_list", [])), default=statement.lineno)
        text = self.line(first)
        indent = text[: len(text) - len(text.lstrip())]
        start = self._starts[statement.lineno - 1]
        before = self.text[start : self.span(statement)[0]]
        if before.strip():
            raise NotEditable(f"line {statement.lineno} holds several statements")
        return indent

    def _offset(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        whole = self.text[start : self._starts[line]]
        return start + len(whole.encode("utf-8")[:column].decode("utf-8"))  # the tree counts bytes

    def line_start(self, line: int) -> int:
        """Offset of the first character of a line."""
        return self._starts[line - 1]


def call_name(call: ast.Call) -> str:
    """The last part of what is called: "clip_grad_norm_" of `nn.utils.clip_grad_norm_(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of a call."""
    return next((k for k in call.keywords if k.arg == name), None)


def _last_line(node: ast.stmt) -> int:
    """The last line of a statement that is its own: of a compound one, the line before its body."""
    if isinstance(node, _COMPOUND):
        body = getattr(node, "body", None) or getattr(node, "cases", None) or [node]
        first = body[0]
        return max(node.lineno, getattr(first, "lineno", node.lineno) - 1)
    return node.end_lineno or node.lineno


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block

"""A user's file as a syntax tree that can be edited: small changes to the text, everything else left as it was."""

from __future__ import annotations

import ast
import difflib
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


@dataclass(frozen=True, slots=True)
class _Change:
    start: int
    end: int
    text: str


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


class Editor:
    """Collects changes to a script; `finish` gives the new text. Changes must not overlap."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._changes: list[_Change] = []

    def replace(self, node: ast.AST, text: str) -> None:
        """Put `text` in the place of a node."""
        start, end = self.script.span(node)
        self._changes.append(_Change(start, end, text))

    def insert(self, offset: int, text: str) -> None:
        """Put `text` at an offset."""
        self._changes.append(_Change(offset, offset, text))

    def before(self, statement: ast.stmt, *lines: str) -> None:
        """Put lines before a statement, indented as it is."""
        indent = self.script.indent(statement)
        first = min((d.lineno for d in getattr(statement, "decorator_list", [])), default=statement.lineno)
        self.insert(self.script.line_start(first), "".join(f"{indent}{line}\n" for line in lines))

    def after(self, statement: ast.stmt, *lines: str) -> None:
        """Put lines after a statement, indented as it is. Raises NotEditable when its last line holds another one."""
        indent = self.script.indent(statement)
        last = statement.end_lineno or statement.lineno
        rest = self.script.line(last)[len(self._last_line_of(statement)) :].strip()
        if rest and not rest.startswith("#"):
            raise NotEditable(f"line {last} holds several statements")
        whole = self.script.text[: self.script.line_start(last + 1)]
        lead = "" if whole.endswith("\n") else "\n"
        self.insert(len(whole), lead + "".join(f"{indent}{line}\n" for line in lines))

    def delete(self, statement: ast.stmt) -> None:
        """Take a whole statement out, its lines with it; `pass` stays where the block would be empty."""
        indent = self.script.indent(statement)
        last = statement.end_lineno or statement.lineno
        alone = len(self.script.block_of(statement)) == 1
        start, end = self.script.line_start(statement.lineno), self.script.line_start(last + 1)
        self._changes.append(_Change(start, end, f"{indent}pass\n" if alone else ""))

    def replace_lines(self, first: int, last: int, text: str) -> None:
        """Put `text` in the place of whole lines."""
        self._changes.append(_Change(self.script.line_start(first), self.script.line_start(last + 1), text))

    def top(self, block: str) -> None:
        """Put a block of code below the first imports."""
        self.insert(self.script.line_start(_after_imports(self.script.tree)), block)

    def finish(self) -> str:
        """The new text. Raises NotEditable when it would no longer be Python, or is what it was."""
        text, limit = self.script.text, len(self.script.text) + 1
        for _, change in sorted(enumerate(self._changes), key=lambda c: (-c[1].start, -c[1].end, -c[0])):
            if change.end > limit:
                raise NotEditable("two changes overlap")
            limit = change.start
            text = text[: change.start] + change.text + text[change.end :]
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise NotEditable(f"the change does not parse: {error}") from error
        if text == self.script.text:
            raise NotEditable("nothing to change")
        return text

    def _last_line_of(self, statement: ast.stmt) -> str:
        last = statement.end_lineno or statement.lineno
        start = self.script.line_start(last)
        return self.script.text[start : self.script.span(statement)[1]]


def call_name(call: ast.Call) -> str:
    """The last part of what is called: "clip_grad_norm_" of `nn.utils.clip_grad_norm_(...)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    """The keyword argument of a call."""
    return next((k for k in call.keywords if k.arg == name), None)


def set_keywords(editor: Editor, call: ast.Call, **values: str) -> None:
    """Give keyword arguments of a call these values, in place where they are written already.

    Raises NotEditable for a call with `**` in it, which may hold them too.
    """
    if any(k.arg is None for k in call.keywords):
        raise NotEditable(f"line {call.lineno}: arguments are unpacked with **")
    new = []
    for name, value in values.items():
        existing = keyword(call, name)
        if existing is not None:
            editor.replace(existing.value, value)
        else:
            new.append(f"{name}={value}")
    if new:
        end = editor.script.span(call)[1] - 1  # before the closing bracket
        inside = editor.script.text[editor.script.span(call.func)[1] : end].strip()
        lead = "" if inside == "(" else " " if inside.endswith(",") else ", "
        editor.insert(end, lead + ", ".join(new))


def unified_diff(old: str, new: str, name: str) -> str:
    """A diff that `patch -p1` and `git apply` take, with three lines around each change."""
    before, after = old.splitlines(keepends=True), new.splitlines(keepends=True)
    lines = list(difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


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


def _after_imports(tree: ast.Module) -> int:
    """The line below the file's first run of imports, its docstring, or its beginning."""
    line, body = 1, list(tree.body)
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        line = (body[0].end_lineno or 1) + 1
        body = body[1:]
    for node in body:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            break
        line = (node.end_lineno or node.lineno) + 1
    return line

"""Small changes to a script's text, everything else left as it was."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from nanprobe.remedies.script import NotEditable, Script, keyword


@dataclass(frozen=True, slots=True)
class _Change:
    start: int
    end: int
    text: str


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

"""A number or an argument that is wrong where it stands: a mask or an eps that FP16 cannot hold, a missing keyword."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, attempt
from nanprobe.remedies.editor import Editor, set_keywords
from nanprobe.remedies.script import NotEditable, call_name

_HALF_MAX = 65504.0


def smaller_constant(case: Case) -> Iterator[Candidate]:
    """A number on the line that FP16 cannot hold, such as a mask of -1e9, made one that it can."""
    script = case.script()
    if script is None or case.finding.source is None or not case.computes_half:
        return
    line, editor, found = case.finding.source.line, Editor(script), []
    for node in script.expressions(line):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and _too_large(node.value):
            editor.replace(node, "3e4")
            found.append(script.source(node))
    if found:
        text = f"line {line}: 3e4 in place of {found[0]}, which FP16 can hold"
        if candidate := attempt(case, RemedyKind.SAFE, text, editor):
            yield candidate


def larger_constant(case: Case) -> Iterator[Candidate]:
    """The eps that FP16 flushes to 0, made one that it can hold."""
    script, lost = case.script(), case.finding.evidence.get("constant")
    if script is None or case.finding.source is None:
        return
    line, editor, done = case.finding.source.line, Editor(script), False
    for node in script.expressions(line):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            continue
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and side.value == lost:
                editor.replace(side, "1e-4")
                done = True
            elif isinstance(side, (ast.Name, ast.Attribute)) and "eps" in script.source(side).lower():
                editor.replace(side, f"max({script.source(side)}, 1e-4)")
                done = True
    if done and (candidate := attempt(case, RemedyKind.EPS, f"line {line}: an eps of 1e-4", editor)):
        yield candidate


def alignment(case: Case) -> Iterator[Candidate]:
    """CTCLoss(...) -> CTCLoss(..., zero_infinity=True), where the loss is made."""
    yield from _everywhere(case, ("CTCLoss",), "zero_infinity", "True", "CTCLoss with zero_infinity=True")


def whole_batches(case: Case) -> Iterator[Candidate]:
    """DataLoader(...) -> DataLoader(..., drop_last=True)."""
    yield from _everywhere(case, ("DataLoader",), "drop_last", "True", "leave the last, incomplete batch out")


def initialised(case: Case) -> Iterator[Candidate]:
    """torch.empty(...) -> small random numbers, where a parameter is made."""
    for path in case.user_files():
        script = case.sources.script(path)
        if script is None:
            continue
        made = [c for c in script.calls("Parameter") if c.args and isinstance(c.args[0], ast.Call)]
        for call in made:
            empty = call.args[0]
            name = (case.finding.parameter or "").rpartition(".")[2]
            assigned = script.statement(call.lineno)
            if not isinstance(empty, ast.Call) or call_name(empty) != "empty" or assigned is None:
                continue
            if name and name not in script.source(assigned).partition("=")[0]:
                continue
            editor = Editor(script)
            editor.replace(empty.func, "torch.randn")
            editor.insert(script.span(empty)[1], " * 0.02")
            if candidate := attempt(case, RemedyKind.SAFE, f"line {call.lineno}: initialise it", editor):
                yield candidate


def _everywhere(case: Case, calls: tuple[str, ...], name: str, value: str, text: str) -> Iterator[Candidate]:
    for path in case.user_files():
        script = case.sources.script(path)
        made = list(script.calls(*calls)) if script is not None else []
        if script is None or not made:
            continue
        editor = Editor(script)
        try:
            for call in made:
                set_keywords(editor, call, **{name: value})
        except NotEditable:
            continue
        if candidate := attempt(case, RemedyKind.SAFE, f"line {made[0].lineno}: {text}", editor):
            yield candidate


def _too_large(value: float) -> bool:
    return not isinstance(value, bool) and math.isfinite(value) and abs(value) > _HALF_MAX

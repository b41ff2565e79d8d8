"""The operation made safe: candidates that change the expression at the finding's line."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace

from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, attempt, finish
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.guards import ATTENTION, RULES, Rule, Scene
from nanprobe.remedies.matching import matches, operands
from nanprobe.remedies.script import NotEditable, Script, call_name


def guarded(case: Case) -> Iterator[Candidate]:
    """The operation's inputs kept inside its domain, by every rule there is for it."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    found = matches(script, case.finding)
    for rule in RULES:
        fitting = [e for e in found if _is_for(rule, e)]
        if fitting and (candidate := _guard(case, script, rule, fitting)):
            yield candidate


def unmasked(case: Case) -> Iterator[Candidate]:
    """Attention given a mask that leaves every row a key."""
    script = case.script()
    if script is not None and case.finding.source is not None:
        calls = [e for e in script.expressions(case.finding.source.line) if isinstance(e, ast.Call)]
        if candidate := _guard(case, script, ATTENTION, list(calls)):
            yield candidate


def outcome_guarded(case: Case) -> Iterator[Candidate]:
    """What turns a flushed number into Inf or NaN, where that is another line or operation than the flush."""
    line, script = case.finding.evidence.get("fails_at_line"), case.script()
    if script is None or not isinstance(line, int):
        return
    wanted = {"log", "log2", "log10", "div", "reciprocal", "rsqrt", "sqrt"}
    for rule in RULES:
        fitting = [e for e in script.expressions(line) if rule.names & wanted and _is_for(rule, e)]
        if fitting and (candidate := _guard(case, script, rule, fitting)):
            yield replace(candidate, text=f"line {line}: {rule.text}")


def masked_inside(case: Case) -> Iterator[Candidate]:
    """where(ok, f(x), y) -> where(ok, f(where(ok, x, 1)), y): the masked elements never reach f; either branch."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    line = case.finding.source.line
    wanted = matches(script, case.finding)
    for where in script.expressions(line):
        if not isinstance(where, ast.Call) or call_name(where) != "where" or len(where.args) != 3:
            continue
        for branch in (where.args[1], where.args[2]):
            target = _at_risk(branch, wanted)
            if target is None or script.source(target).startswith("torch.where("):
                continue
            editor, x = Editor(script), script.source(target)
            one = f"torch.ones_like({script.operand(target)})"
            kept = (x, one) if branch is where.args[1] else (one, x)
            editor.replace(target, f"torch.where({script.source(where.args[0])}, {', '.join(kept)})")
            if candidate := attempt(case, RemedyKind.SAFE, f"line {line}: mask the input too (double where)", editor):
                yield candidate


def scaled_before(case: Case) -> Iterator[Candidate]:
    """(q @ k) / s -> (q / s) @ k: the same scores, never larger than they need to be."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    line, products = case.finding.source.line, matches(script, case.finding)
    for node in script.expressions(line):
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, (ast.Div, ast.Mult)):
            continue
        product = node.left
        if not any(product is p for p in products):
            continue
        first = next(operands(product), None)
        if first is None:
            continue
        editor, sign = Editor(script), "/" if isinstance(node.op, ast.Div) else "*"
        factor = script.source(node.right) if isinstance(node.right, ast.Constant) else script.operand(node.right)
        start, _ = script.span(first)
        body = script.source(product)
        at = start - script.span(product)[0]
        scaled = f"{body[:at]}({script.source(first)} {sign} {factor}){body[at + len(script.source(first)) :]}"
        editor.replace(node, f"({scaled})" if isinstance(product, ast.BinOp) else scaled)
        if candidate := attempt(case, RemedyKind.SAFE, f"line {line}: scale before the product", editor):
            yield candidate


def _guard(case: Case, script: Script, rule: Rule, expressions: list[ast.expr]) -> Candidate | None:
    """The rule on the first of these expressions that it changes; another may be the next finding."""
    line = case.finding.source.line if case.finding.source else 0
    for expression in expressions:
        editor = Editor(script)
        with contextlib.suppress(NotEditable):
            if rule.apply(Scene(editor, case.computes_half), expression):
                return finish(case, RemedyKind.SAFE, f"line {line}: {rule.text}", editor)
    return None


def _is_for(rule: Rule, expression: ast.expr) -> bool:
    if isinstance(expression, ast.BinOp):
        name = {ast.Div: "div", ast.Pow: "pow"}.get(type(expression.op))
        return name in rule.names
    return isinstance(expression, ast.Call) and call_name(expression).rstrip("_") in rule.names


def _at_risk(branch: ast.expr, wanted: list[ast.expr]) -> ast.expr | None:
    """What the operation at fault reads in a branch of a where."""
    inside = [e for e in ast.walk(branch) if any(e is w for w in wanted)]
    return next((o for e in inside if isinstance(e, ast.expr) for o in [_guarded_operand(e)] if o is not None), None)


def _guarded_operand(expression: ast.expr) -> ast.expr | None:
    parts = list(operands(expression))
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div):
        return parts[1]
    return parts[0] if parts else None

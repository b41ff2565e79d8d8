"""The operation made safe: candidates that change the expression at the finding's line."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace

from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.guards import ATTENTION, RULES, Rule, Scene
from nanprobe.remedies.matching import assigned_from, matches, operands
from nanprobe.remedies.script import Editor, NotEditable, Script, call_name, set_keywords

_HALF_MAX = 65504.0
_FUSED = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}


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


def _guard(case: Case, script: Script, rule: Rule, expressions: list[ast.expr]) -> Candidate | None:
    """The rule on the first of these expressions that it changes; another may be the next finding."""
    line = case.finding.source.line if case.finding.source else 0
    for expression in expressions:
        editor = Editor(script)
        with contextlib.suppress(NotEditable):
            if rule.apply(Scene(editor, _computes_half(case)), expression):
                return finish(case, RemedyKind.SAFE, f"line {line}: {rule.text}", editor)
    return None


def fused_log(case: Case) -> Iterator[Candidate]:
    """log(softmax(x)) -> log_softmax(x), and the same for sigmoid; also where the two stand on lines of their own."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    line = case.finding.source.line
    for log in script.expressions(line):
        if not isinstance(log, ast.Call) or call_name(log) not in ("log", "log_"):
            continue
        inner = next(operands(log), None)
        if inner is None:
            continue
        editor = Editor(script)
        done = _fuse_nested(editor, log, inner) or _fuse_assigned(editor, log, inner, line)
        if done and (candidate := _made(case, RemedyKind.SAFE, f"line {line}: {done}", editor)):
            yield candidate


def _fuse_nested(editor: Editor, log: ast.Call, inner: ast.expr) -> str | None:
    if not isinstance(inner, ast.Call) or call_name(inner) not in _FUSED:
        return None
    editor.replace(log, _fused_call(editor.script, inner, None))
    return f"{_FUSED[call_name(inner)]} in place of log({call_name(inner)})"


def _fuse_assigned(editor: Editor, log: ast.Call, inner: ast.expr, line: int) -> str | None:
    script = editor.script
    made = assigned_from(script, inner, line, *_FUSED)
    if made is None or not isinstance(made.value, ast.Call) or not isinstance(inner, ast.Name):
        return None
    function, argument = call_name(made.value), next(operands(made.value), None)
    if argument is None:
        return None
    name = argument.id if isinstance(argument, ast.Name) else f"{inner.id}_logits"
    if not isinstance(argument, ast.Name):
        editor.before(made, f"{name} = {script.source(argument)}")
        editor.replace(argument, name)
    editor.replace(log, _fused_call(script, made.value, name))
    return f"{_FUSED[function]} in place of log({function})"


def _fused_call(script: Script, call: ast.Call, argument: str | None) -> str:
    """The fused function on the same arguments."""
    x, *rest = operands(call)
    text = argument or script.source(x)
    more = [script.source(a) for a in rest] + [script.source(k) for k in call.keywords]
    return f"torch.nn.functional.{_FUSED[call_name(call)]}({', '.join([text, *more])})"


def logits_loss(case: Case) -> Iterator[Candidate]:
    """binary_cross_entropy(sigmoid(x), y) -> binary_cross_entropy_with_logits(x, y)."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    line = case.finding.source.line
    for call in script.expressions(line):
        if not isinstance(call, ast.Call) or call_name(call) != "binary_cross_entropy" or len(call.args) < 2:
            continue
        probability, target, *rest = call.args
        editor = Editor(script)
        made = assigned_from(script, probability, line, "sigmoid")
        inner = made.value if made is not None else probability
        if not isinstance(inner, ast.Call) or call_name(inner) != "sigmoid":
            continue
        logits = next(operands(inner))
        text = script.source(logits)
        if made is not None and not isinstance(logits, ast.Name):
            text = f"{script.source(probability)}_logits"
            editor.before(made, f"{text} = {script.source(logits)}")
            editor.replace(logits, text)
        more = [script.source(a) for a in (target, *rest)] + [script.source(k) for k in call.keywords]
        editor.replace(call, f"torch.nn.functional.binary_cross_entropy_with_logits({', '.join([text, *more])})")
        candidate = _made(case, RemedyKind.SAFE, f"line {line}: binary_cross_entropy_with_logits on the logits", editor)
        if candidate is not None:
            yield candidate


def fp32_loss(case: Case) -> Iterator[Candidate]:
    """A loss that autocast refuses, computed outside it: its arguments first, then the loss on their floats."""
    script = case.script()
    if script is None or case.finding.source is None:
        return
    statement = script.statement(case.finding.source.line)
    if not isinstance(statement, (ast.Assign, ast.Return, ast.Expr)) or not isinstance(statement.value, ast.Call):
        return
    call, editor = statement.value, Editor(script)
    if len(call.args) < 2 or call.keywords:
        return
    arguments = [script.source(a) for a in call.args[:2]]
    indent = script.indent(statement)
    device = '"cuda" if torch.cuda.is_available() else "cpu"'
    head = f"loss_input, loss_target = {arguments[0]}, {arguments[1]}\n"
    start, end = script.span(statement)
    for argument, name in zip(call.args[:2], ("loss_input", "loss_target"), strict=True):
        editor.replace(argument, f"{name}.float()")
    editor.insert(start, f"{head}{indent}with torch.autocast({device}, enabled=False):\n{indent}    ")
    line = case.finding.source.line
    if end and (candidate := _made(case, RemedyKind.FUNCTION, f"line {line}: compute the loss in FP32", editor)):
        yield candidate


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
            if candidate := _made(case, RemedyKind.SAFE, f"line {line}: mask the input too (double where)", editor):
                yield candidate


def _at_risk(branch: ast.expr, wanted: list[ast.expr]) -> ast.expr | None:
    """What the operation at fault reads in a branch of a where."""
    inside = [e for e in ast.walk(branch) if any(e is w for w in wanted)]
    return next((o for e in inside if isinstance(e, ast.expr) for o in [_guarded_operand(e)] if o is not None), None)


def _guarded_operand(expression: ast.expr) -> ast.expr | None:
    parts = list(operands(expression))
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Div):
        return parts[1]
    return parts[0] if parts else None


def smaller_constant(case: Case) -> Iterator[Candidate]:
    """A number on the line that FP16 cannot hold, such as a mask of -1e9, made one that it can."""
    script = case.script()
    if script is None or case.finding.source is None or not _computes_half(case):
        return
    line, editor, found = case.finding.source.line, Editor(script), []
    for node in script.expressions(line):
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and _too_large(node.value):
            editor.replace(node, "3e4")
            found.append(script.source(node))
    if found:
        text = f"line {line}: 3e4 in place of {found[0]}, which FP16 can hold"
        if candidate := _made(case, RemedyKind.SAFE, text, editor):
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
    if done and (candidate := _made(case, RemedyKind.EPS, f"line {line}: an eps of 1e-4", editor)):
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
        if candidate := _made(case, RemedyKind.SAFE, f"line {line}: scale before the product", editor):
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
            if candidate := _made(case, RemedyKind.SAFE, f"line {call.lineno}: initialise it", editor):
                yield candidate


def kept_graph(case: Case) -> Iterator[Candidate]:
    """torch.tensor(losses, requires_grad=True) -> torch.stack(losses), which keeps the graph."""
    for path in case.user_files():
        script = case.sources.script(path)
        made = [] if script is None else [c for c in script.calls("tensor", "as_tensor") if c.args]
        for call in made:
            if script is None or not any(k.arg == "requires_grad" for k in call.keywords):
                continue
            editor = Editor(script)
            editor.replace(call, f"torch.stack({script.source(call.args[0])})")
            if candidate := _made(case, RemedyKind.SAFE, f"line {call.lineno}: torch.stack keeps the graph", editor):
                yield candidate


def in_range(case: Case) -> Iterator[Candidate]:
    """Targets of 0 and 255 divided by 255, where the loss is computed."""
    script, largest = case.script(), case.finding.evidence.get("target_abs_max")
    if script is None or case.finding.source is None or largest != 255.0:
        return
    for call in script.expressions(case.finding.source.line):
        if isinstance(call, ast.Call) and len(call.args) >= 2:
            editor = Editor(script)
            editor.replace(call.args[1], f"{script.operand(call.args[1])} / 255")
            text = f"line {case.finding.source.line}: masks of 0 and 255 divided by 255"
            if candidate := _made(case, RemedyKind.DATA, text, editor):
                yield candidate
            return


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
        if candidate := _made(case, RemedyKind.SAFE, f"line {made[0].lineno}: {text}", editor):
            yield candidate


def _is_for(rule: Rule, expression: ast.expr) -> bool:
    if isinstance(expression, ast.BinOp):
        name = {ast.Div: "div", ast.Pow: "pow"}.get(type(expression.op))
        return name in rule.names
    return isinstance(expression, ast.Call) and call_name(expression).rstrip("_") in rule.names


def _made(case: Case, kind: RemedyKind, text: str, editor: Editor) -> Candidate | None:
    try:
        return finish(case, kind, text, editor)
    except NotEditable:
        return None


def _too_large(value: float) -> bool:
    return not isinstance(value, bool) and math.isfinite(value) and abs(value) > _HALF_MAX


def _computes_half(case: Case) -> bool:
    """Whether the operation at fault computes in half precision."""
    finding = case.finding
    for deep in case.trace.deep_steps:
        for op in deep.ops:
            if deep.step == finding.step and op.op == finding.op and op.source == finding.source and op.outputs:
                return op.outputs[0].dtype in ("float16", "bfloat16")
    return case.low_dtype

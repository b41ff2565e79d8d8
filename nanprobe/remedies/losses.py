"""Losses written as one function: log-softmax for log(softmax), logits for probabilities, a graph that is kept."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, attempt
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.matching import assigned_from, operands
from nanprobe.remedies.script import Script, call_name

_FUSED = {"softmax": "log_softmax", "sigmoid": "logsigmoid"}


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
        if done and (candidate := attempt(case, RemedyKind.SAFE, f"line {line}: {done}", editor)):
            yield candidate


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
        candidate = attempt(
            case, RemedyKind.SAFE, f"line {line}: binary_cross_entropy_with_logits on the logits", editor
        )
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
    if end and (candidate := attempt(case, RemedyKind.FUNCTION, f"line {line}: compute the loss in FP32", editor)):
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
            if candidate := attempt(case, RemedyKind.SAFE, f"line {call.lineno}: torch.stack keeps the graph", editor):
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
            if candidate := attempt(case, RemedyKind.DATA, text, editor):
                yield candidate
            return


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

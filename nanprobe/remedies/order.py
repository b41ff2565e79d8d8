"""AMP's calls put into the right order: one small change of the loop for each misuse."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from nanprobe.records import Source
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.script import NotEditable, Script, call_name

_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
Change = Callable[[Case, Script, Editor], str]  # raises NotEditable


def put_in_order(case: Case) -> Iterator[Candidate]:
    """The change for the finding's code; none where the loop does not allow one."""
    change = _CHANGES.get(case.finding.code)
    script = case.script()
    if change is None or script is None or not case.as_written:
        return
    try:
        editor = Editor(script)
        text = change(case, script, editor)
        yield finish(case, RemedyKind.ORDER, text, editor)
    except NotEditable:
        return


def _unscale_before_clip(case: Case, script: Script, editor: Editor) -> str:
    scaler, optimizers = _scaler_step(case, script)
    for source in _here(case, script, *_CLIPS):
        wanted = optimizers
        if case.finding.code == "NP615":
            done = {a for c in script.calls("unscale_") for a in (script.source(x) for x in c.args)}
            wanted = [o for o in optimizers if o not in done]
        editor.before(script.whole_statement(source.line), *(f"{scaler}.unscale_({o})" for o in wanted))
    return f"line {case.finding.source.line if case.finding.source else 0}: unscale_ before clipping"


def _step_through_scaler(case: Case, script: Script, editor: Editor) -> str:
    scaler = _receiver(script, _needed(case, script, "scaler.scale")[0], "scale")
    updates = _methods(script, scaler, "update")
    for source in _here(case, script, "optimizer.step"):
        call, optimizer = script.method_call(source.line, "step")
        editor.replace(call, f"{scaler}.step({optimizer})")
        if not updates:
            editor.after(script.whole_statement(source.line), f"{scaler}.update()")
    return f"line {case.finding.source.line if case.finding.source else 0}: {scaler}.step in place of step"


def _update_after_step(case: Case, script: Script, editor: Editor) -> str:
    steps = _needed(case, script, "scaler.step")
    last = max(steps, key=lambda s: s.line)
    scaler = _receiver(script, last, "step")
    for call in _methods(script, scaler, "update"):  # in a place that is never come to, or comes too late
        editor.delete(script.whole_statement(call.lineno))
    editor.after(script.whole_statement(last.line), f"{scaler}.update()")
    return f"line {last.line}: {scaler}.update() after the step"


def _update_with_step(case: Case, script: Script, editor: Editor) -> str:
    """`update` moved from every micro-batch to where the optimizer steps."""
    line = case.finding.source.line if case.finding.source else 0
    if not any(call.lineno == line for call in script.calls("update")):  # it is the step that is called too often
        return _clear_with_step(case, script, editor)
    scaler = script.method_call(line, "update")[1]
    # From the text: a script that was stopped by the first update has not come to its step.
    steps = _methods(script, scaler, "step")
    if not steps:
        raise NotEditable("this scaler steps in another file")
    for call in _methods(script, scaler, "update"):
        editor.delete(script.whole_statement(call.lineno))
    editor.after(script.whole_statement(max(c.lineno for c in steps)), f"{scaler}.update()")
    return f"line {line}: {scaler}.update() only where the optimizer steps"


def _clear_with_step(case: Case, script: Script, editor: Editor) -> str:
    """Gradients cleared after each step, so that none is applied twice."""
    steps = _here(case, script, "scaler.step") or _needed(case, script, "optimizer.step")
    updates = _here(case, script, "scaler.update")
    last = max([*steps, *updates], key=lambda s: s.line)
    for optimizer in dict.fromkeys(_stepped(script, s) for s in steps):
        editor.after(script.whole_statement(last.line), f"{optimizer}.zero_grad()")
    return f"line {last.line}: zero_grad after the step"


def _unscale_once(case: Case, script: Script, editor: Editor) -> str:
    """`unscale_` moved from every micro-batch to just before the step, and before clipping."""
    scaler, optimizers = _scaler_step(case, script)
    for source in _here(case, script, "scaler.unscale_"):
        editor.delete(script.whole_statement(source.line))
    places = _here(case, script, *_CLIPS) or _here(case, script, "scaler.step")
    if not places:
        raise NotEditable("no step in this file")
    editor.before(script.whole_statement(places[0].line), *(f"{scaler}.unscale_({o})" for o in optimizers))
    return f"line {places[0].line}: unscale_ once, before the step"


def _update_before_leaving(case: Case, script: Script, editor: Editor) -> str:
    """`update` before each `continue` that stands between `unscale_` and `update`."""
    scaler, _ = _scaler_step(case, script)
    unscaled = min(s.line for s in _needed(case, script, "scaler.unscale_"))
    ends = [s.line for s in _here(case, script, "scaler.update", "scaler.step")]
    leaving = [
        n for n in ast.walk(script.tree) if isinstance(n, ast.Continue) and unscaled < n.lineno < max(ends, default=0)
    ]
    if not leaving:
        raise NotEditable("no continue between unscale_ and update")
    for node in leaving:
        editor.before(node, f"{scaler}.update()")
    return f"line {leaving[0].lineno}: {scaler}.update() before continue"


def _clear_gradients(case: Case, script: Script, editor: Editor) -> str:
    """Gradients cleared before backward; after the step where one of several backward passes steps."""
    backwards = _here(case, script, "backward")
    steps = _here(case, script, "scaler.step") or _here(case, script, "optimizer.step")
    if not steps:
        raise NotEditable("no step in this file")
    optimizers = list(dict.fromkeys(_stepped(script, s) for s in steps))
    together = {script.function(s.line) for s in (*steps, *backwards)}
    known = len(together) == 1 or all(o.startswith("self.") for o in optimizers)
    if len(backwards) != 1 or not known or any(s.backward_passes > 1 for s in case.trace.steps):
        return _clear_with_step(case, script, editor)
    editor.before(script.whole_statement(backwards[0].line), *(f"{o}.zero_grad()" for o in optimizers))
    return f"line {backwards[0].line}: zero_grad before backward"


def _close_autocast(case: Case, script: Script, editor: Editor) -> str:
    """The autocast context ended before backward: what comes after the loss moves out of it."""
    source = case.finding.source
    statement = script.statement(source.line) if source else None
    if not isinstance(statement, ast.With) or len(statement.items) != 1:
        raise NotEditable("no with statement at that line")
    context = script.source(statement.items[0].context_expr)
    loop = _loop_with_backward(statement)
    if loop is None:
        raise NotEditable("no loop with a backward pass inside")
    inside = [s for s in loop.body if s.lineno < _backward_line(loop)]
    first = next((s for s in inside if not _is_housekeeping(s)), None)
    if first is None:
        raise NotEditable("nothing to compute before backward")
    block = inside[inside.index(first) :]
    lines = script.text.splitlines(keepends=True)
    width = statement.body[0].col_offset - statement.col_offset
    start, end = statement.body[0].lineno, statement.end_lineno or statement.lineno
    new = []
    for number in range(start, end + 1):
        text = lines[number - 1]
        text = text[width:] if text[:width].isspace() else text
        if block[0].lineno <= number <= (block[-1].end_lineno or block[-1].lineno):
            if number == block[0].lineno:
                new.append(" " * (block[0].col_offset - width) + f"with {context}:\n")
            text = " " * width + text if text.strip() else text
        new.append(text)
    editor.replace_lines(statement.lineno, end, "".join(new))
    return f"line {statement.lineno}: autocast around the forward pass and the loss only"


def _loop_with_backward(statement: ast.With) -> ast.For | ast.While | None:
    loops = [n for n in ast.walk(statement) if isinstance(n, (ast.For, ast.While))]
    fitting = [n for n in loops if any(_calls(s, "backward") for s in n.body)]
    return fitting[-1] if fitting else None


def _backward_line(loop: ast.For | ast.While) -> int:
    return next(s.lineno for s in loop.body if _calls(s, "backward"))


def _calls(statement: ast.stmt, name: str) -> bool:
    return any(isinstance(n, ast.Call) and call_name(n) == name for n in ast.walk(statement))


def _is_housekeeping(statement: ast.stmt) -> bool:
    return _calls(statement, "zero_grad") or not any(isinstance(n, ast.Call) for n in ast.walk(statement))


def _here(case: Case, script: Script, *names: str) -> list[Source]:
    return [s for s in case.call_sources(*names) if s.file == script.path]


def _needed(case: Case, script: Script, name: str) -> list[Source]:
    found = _here(case, script, name)
    if not found:
        raise NotEditable(f"no {name} in this file")
    return found


def _scaler_step(case: Case, script: Script) -> tuple[str, list[str]]:
    """What the scaler is called, and the optimizers it steps."""
    steps = _needed(case, script, "scaler.step")
    return _receiver(script, steps[0], "step"), list(dict.fromkeys(_stepped(script, s) for s in steps))


def _methods(script: Script, owner: str, name: str) -> list[ast.Call]:
    """Every call of a method of this object in the file, whether it was come to or not."""
    found = script.calls(name)
    return [c for c in found if isinstance(c.func, ast.Attribute) and script.source(c.func.value) == owner]


def _stepped(script: Script, source: Source) -> str:
    """The optimizer of `scaler.step(optimizer)` or `optimizer.step()`."""
    call, owner = script.method_call(source.line, "step")
    return script.source(call.args[0]) if call.args else owner


def _receiver(script: Script, source: Source, method: str) -> str:
    return script.method_call(source.line, method)[1]


_CHANGES: dict[str, Change] = {
    "NP601": _unscale_before_clip,
    "NP602": _step_through_scaler,
    "NP603": _update_after_step,
    "NP604": _update_with_step,
    "NP605": _unscale_once,
    "NP606": _close_autocast,
    "NP615": _unscale_before_clip,
    "NP616": _clear_gradients,
    "NP617": _update_before_leaving,
}

"""Numbers to turn: clipping, the learning rate, warm-up, the optimizer's eps."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from nanprobe.interventions import ClipGradients, RaiseEps, ScaleRate, WarmUp
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor, set_keywords
from nanprobe.remedies.precision import optimizer_calls
from nanprobe.remedies.script import NotEditable, Script, call_name, keyword
from nanprobe.remedies.snippets import add_snippet

_WITHOUT_EPS = frozenset({"SGD", "LBFGS", "Rprop", "ASGD", ""})
SAFE_EPS = 1e-4  # FP16's smallest normal number is 6.1e-5


WARM_UP_UPDATES = 20  # our choice: a good part of the 50 steps that a run has


_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")


def clipping(case: Case) -> Iterator[Candidate]:
    """The gradient's norm held down, where the script does not do that already."""
    limit = _usual_norm(case)
    held = [c.details.get("limit") for c in case.trace.calls if c.name in _CLIPS]
    if any(isinstance(h, (int, float)) and h <= limit for h in held):
        return
    text = f"clip the gradients at a norm of {limit:g}"
    try:
        written = _clip_written(case, limit, text) if case.as_written else None
    except NotEditable:
        written = None
    yield written or Candidate(RemedyKind.CLIP, text, case.outside(ClipGradients(limit)))


def learning_rate(factor: float, case: Case) -> Iterator[Candidate]:
    """Every learning rate times `factor`: where a schedule sets it, else where the optimizer is made."""
    text = f"learning rate ÷ {1.0 / factor:g}" if factor < 1.0 else f"learning rate × {factor:g}"
    written = None
    for path in case.user_files():
        script = case.sources.script(path)
        if script is None or written is not None:
            continue
        try:
            written = _scheduled(case, script, factor, text)
        except NotEditable:
            continue
    for script, call in optimizer_calls(case):
        value = keyword(call, "lr")
        rate = value.value if value is not None else call.args[1] if len(call.args) > 1 else None
        if written is None and rate is not None:
            editor = Editor(script)
            editor.replace(rate, f"{script.operand(rate)} * {factor:g}")
            written = finish(case, RemedyKind.RATE, f"line {call.lineno}: {text}", editor)
    yield written or Candidate(RemedyKind.RATE, text, case.outside(ScaleRate(factor)))


def warm_up(case: Case) -> Iterator[Candidate]:
    """Learning rates that rise over the first updates."""
    text = f"warm the learning rate up over {WARM_UP_UPDATES} updates"
    yield _below_optimizer(case, RemedyKind.WARM_UP, text, "warm_up", f"{{}}, {WARM_UP_UPDATES}") or Candidate(
        RemedyKind.WARM_UP, text, case.outside(WarmUp(WARM_UP_UPDATES))
    )


def optimizer_eps(case: Case) -> Iterator[Candidate]:
    """An eps that the weights' format can hold."""
    names = {(s.optimizer or "").partition("#")[0] for s in case.trace.steps}
    if names <= _WITHOUT_EPS:
        return
    for script, call in optimizer_calls(case):
        if call_name(call) in _WITHOUT_EPS:
            continue
        editor = Editor(script)
        try:
            set_keywords(editor, call, eps=f"{SAFE_EPS:g}")
            yield finish(case, RemedyKind.OPTIMIZER_EPS, f"line {call.lineno}: eps={SAFE_EPS:g}", editor)
            return
        except NotEditable:
            continue
    yield Candidate(RemedyKind.OPTIMIZER_EPS, f"an optimizer eps of {SAFE_EPS:g}", case.outside(RaiseEps(SAFE_EPS)))


def _clip_written(case: Case, limit: float, text: str) -> Candidate | None:
    scaled = case.call_sources("scaler.step")
    steps = scaled or case.call_sources("optimizer.step")
    if len({s.file for s in steps}) != 1 or case.call_sources(*_CLIPS):
        return None
    script = case.sources.script(steps[0])
    if script is None:
        return None
    editor = Editor(script)
    for source in steps:
        step, owner = script.method_call(source.line, "step")
        if step.args and not scaled:
            return None  # a closure: gradients are made inside step
        optimizer = script.source(step.args[0]) if scaled else owner
        lines = [
            f"torch.nn.utils.clip_grad_norm_([p for g in {optimizer}.param_groups for p in g['params']], {limit:g})"
        ]
        if scaled and not case.call_sources("scaler.unscale_"):
            lines.insert(0, f"{owner}.unscale_({optimizer})")
        editor.before(script.whole_statement(source.line), *lines)
    return finish(case, RemedyKind.CLIP, text, editor)


def _usual_norm(case: Case) -> float:
    """The norm of the first gradient that was looked at, so that usual steps stay as they are; at least 1."""
    for deep in (case.reference or case.trace).deep_steps:
        norms = [g.shadow_norm for g in deep.grads if g.shadow_norm is not None and math.isfinite(g.shadow_norm)]
        if norms:
            total = math.sqrt(sum(n * n for n in norms)) / (deep.loss_scale or 1.0)
            if math.isfinite(total) and total > 1.0:
                digits = 10.0 ** math.floor(math.log10(total))
                return math.ceil(total / digits) * digits
            return 1.0
    return 1.0


def _scheduled(case: Case, script: Script, factor: float, text: str) -> Candidate | None:
    """The factor where the script itself writes `group["lr"] = ...`."""
    for node in ast.walk(script.tree):
        if isinstance(node, ast.Assign) and any(_is_rate(t) for t in node.targets):
            editor = Editor(script)
            editor.replace(node.value, f"{script.operand(node.value)} * {factor:g}")
            return finish(case, RemedyKind.RATE, f"line {node.lineno}: {text}", editor)
    return None


def _is_rate(target: ast.expr) -> bool:
    return isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and target.slice.value == "lr"


def _below_optimizer(case: Case, kind: RemedyKind, text: str, function: str, arguments: str) -> Candidate | None:
    """A snippet's call below each line that makes an optimizer."""
    calls = list(optimizer_calls(case))
    if len({script.path for script, _ in calls}) != 1:
        return None
    script, editor, done = calls[0][0], Editor(calls[0][0]), 0
    try:
        add_snippet(editor, function, function)
        for _, call in calls:
            statement = script.statement(call.lineno)
            if isinstance(statement, ast.Assign) and statement.value is call:
                target = script.source(statement.targets[0])
                editor.after(statement, f"{function}({arguments.format(target)})")
                done += 1
        return finish(case, kind, text, editor) if done else None
    except NotEditable:
        return None

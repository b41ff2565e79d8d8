"""Numbers to turn: the loss scale, clipping, the learning rate, warm-up, the optimizer's eps."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from nanprobe.interventions import ClipGradients, RaiseEps, ScaleRate, WarmUp
from nanprobe.records import StageName
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.precision import optimizer_calls
from nanprobe.remedies.script import Editor, NotEditable, Script, call_name, keyword, set_keywords
from nanprobe.remedies.snippets import add_snippet

USUAL_GROWTH_INTERVAL = 2000  # Source: torch.amp.GradScaler
SAFE_EPS = 1e-4  # FP16's smallest normal number is 6.1e-5
WARM_UP_UPDATES = 20  # our choice: a good part of the 50 steps that a run has
_CLIPS = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")
_HALF_MAX = 65504.0


def loss_scale(case: Case) -> Iterator[Candidate]:
    """A scale at which the gradient that overflowed fits with a factor of 2 to spare, and the usual growth."""
    if case.trace.name is not StageName.AMP or case.trace.dtype != "float16":
        return
    scale, settings = _safe_scale(case), _own_settings(case)
    if case.finding.code == "NP201":
        scale = _wanted_scale(case) or scale
    present = next((s.loss_scale for s in case.trace.steps if s.loss_scale), None)
    if scale is not None and present is not None and scale >= present and case.finding.code != "NP201":
        scale = max(1.0, present / 16.0)  # what is too large does not need a larger scale
    interval = settings.get("growth_interval")
    fast = isinstance(interval, (int, float)) and interval < USUAL_GROWTH_INTERVAL
    choices: list[tuple[float | None, int | None]] = []
    if scale is not None:
        choices.append((scale, USUAL_GROWTH_INTERVAL if fast else None))
    if fast:
        choices.append((None, USUAL_GROWTH_INTERVAL))
    for init, growth in choices:
        yield _scaler_with(case, init, growth)


def _scaler_with(case: Case, init: float | None, growth: int | None) -> Candidate:
    values = {}
    if init is not None:
        values["init_scale"] = f"{init:.1f}" if init >= 1.0 else repr(init)
    if growth is not None:
        values["growth_interval"] = str(growth)
    text = f"GradScaler({', '.join(f'{k}={v}' for k, v in values.items())})"
    if case.as_written:
        for source in case.call_sources("scaler.init"):
            script = case.sources.script(source)
            calls = [] if script is None else [c for c in script.calls("GradScaler") if c.lineno == source.line]
            if script is None or not calls:
                continue
            editor = Editor(script)
            try:
                _set_scaler(editor, calls[0], values)
                return finish(case, RemedyKind.SCALE, f"line {source.line}: {text}", editor)
            except NotEditable:
                continue
    return Candidate(RemedyKind.SCALE, text, case.outside(init_scale=init, growth_interval=growth))


def _set_scaler(editor: Editor, call: ast.Call, values: dict[str, str]) -> None:
    """Settings of a GradScaler, given by name or by place. Source: torch.amp.GradScaler's signature."""
    places = ["init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled"]
    if "cuda.amp" not in editor.script.source(call.func):
        places.insert(0, "device")
    given = dict(zip(places, call.args, strict=False))
    for name in values.keys() & given.keys():
        editor.replace(given[name], values[name])
    set_keywords(editor, call, **{name: value for name, value in values.items() if name not in given})


def _safe_scale(case: Case) -> float | None:
    """A power of two at which the largest gradient ever seen still fits twice over."""
    peak = case.finding.evidence.get("unscaled_abs_max")
    peaks = [float(peak)] if isinstance(peak, (int, float)) and peak > 0 else []
    for step in case.trace.steps:
        finite = [g for g in step.grad_abs_max if g is not None and math.isfinite(g)]
        if step.loss_scale and finite and max(finite) > 0.0:
            peaks.append(max(finite) / step.loss_scale)
    wanted = max(peaks, default=None)
    if wanted is None:
        scales = [s.loss_scale for s in case.trace.steps if s.loss_scale and not s.skipped]
        return min(scales, default=None)
    return float(2.0 ** max(0, math.floor(math.log2(_HALF_MAX / wanted / 2.0))))


def _own_settings(case: Case) -> dict[str, object]:
    return next((c.details for c in case.trace.calls if c.name == "scaler.init"), {})


def add_scaler(case: Case) -> Iterator[Candidate]:
    """A GradScaler for a loop that has none: made at the top, around backward, clipping and the step."""
    if not case.as_written or case.trace.name is not StageName.AMP or case.call_sources("scaler.scale"):
        return
    backward, steps = case.call_sources("backward"), case.call_sources("optimizer.step")
    if len({s.file for s in (*backward, *steps)}) != 1 or not steps:
        return
    script = case.sources.script(backward[0])
    if script is None:
        return
    try:
        editor = Editor(script)
        scaler = "scaler" if "scaler" not in script.names() else "loss_scaler"
        device = '"cuda" if torch.cuda.is_available() else "cpu"'
        init = _wanted_scale(case)
        wanted = f", init_scale={init:.1f}" if init else ""
        editor.top(f"\n{scaler} = torch.amp.GradScaler({device}{wanted})\n")
        for source in backward:
            _scale_backward(editor, source.line, scaler)
        for source in steps:
            step, optimizer = script.method_call(source.line, "step")
            editor.replace(step, f"{scaler}.step({optimizer})")
            editor.after(script.whole_statement(source.line), f"{scaler}.update()")
            for clip in case.call_sources(*_CLIPS):
                editor.before(script.whole_statement(clip.line), f"{scaler}.unscale_({optimizer})")
        yield finish(case, RemedyKind.SCALE, "scale the loss with a GradScaler", editor)
    except NotEditable:
        return


def _wanted_scale(case: Case) -> float | None:
    """The scale that lifts the largest lost gradient into the normal range, as the finding asks for."""
    lost = case.finding.evidence.get("abs_max_where_lost")
    if not isinstance(lost, (int, float)) or lost <= 0:
        return None
    return float(2.0 ** min(24, max(1, math.ceil(math.log2(2.0**-14 / lost)) + 4)))


def _scale_backward(editor: Editor, line: int, scaler: str) -> None:
    call, loss = editor.script.method_call(line, "backward")
    assert isinstance(call.func, ast.Attribute)
    editor.replace(call.func.value, f"{scaler}.scale({loss})")


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


def warm_up(case: Case) -> Iterator[Candidate]:
    """Learning rates that rise over the first updates."""
    text = f"warm the learning rate up over {WARM_UP_UPDATES} updates"
    yield _below_optimizer(case, RemedyKind.WARM_UP, text, "warm_up", f"{{}}, {WARM_UP_UPDATES}") or Candidate(
        RemedyKind.WARM_UP, text, case.outside(WarmUp(WARM_UP_UPDATES))
    )


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


def optimizer_eps(case: Case) -> Iterator[Candidate]:
    """An eps that the weights' format can hold."""
    for script, call in optimizer_calls(case):
        if call_name(call) in ("SGD", "LBFGS"):
            continue
        editor = Editor(script)
        try:
            set_keywords(editor, call, eps=f"{SAFE_EPS:g}")
            yield finish(case, RemedyKind.OPTIMIZER_EPS, f"line {call.lineno}: eps={SAFE_EPS:g}", editor)
            return
        except NotEditable:
            continue
    yield Candidate(RemedyKind.OPTIMIZER_EPS, f"an optimizer eps of {SAFE_EPS:g}", case.outside(RaiseEps(SAFE_EPS)))

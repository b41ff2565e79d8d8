"""The loss scale: where it starts and how fast it grows, replayed before it is run; a scaler where there is none."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

from nanprobe.loss_scale.policies import PYTORCH, ScalerPolicy, ScalerState
from nanprobe.records import StageName, StepRecord
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor, set_keywords
from nanprobe.remedies.script import NotEditable

USUAL_GROWTH_INTERVAL = 2000  # Source: torch.amp.GradScaler


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
    replayed = [(_replay(case, init, growth), init, growth) for init, growth in choices]
    if case.finding.code != "NP201":  # where gradients are lost, the fewest skips are not what is wanted
        replayed.sort(key=lambda r: r[0])
    for skips, init, growth in replayed:
        yield _scaler_with(case, init, growth, skips)


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


def _replay(case: Case, init: float | None, growth: int | None) -> int:
    """Steps that would be skipped with these settings, over what the failing stage recorded.

    The largest scale that fits a step is not known exactly: what was used and did not overflow fits, half of what did
    overflow may, and no step takes more than what overflowed elsewhere.
    """
    settings = _own_settings(case)
    start = init or _number(settings.get("init_scale")) or PYTORCH.init_scale
    interval = growth or int(_number(settings.get("growth_interval")) or PYTORCH.growth_interval)
    state = ScalerState.start(ScalerPolicy("replayed", start, interval))
    cap = min((s.loss_scale / 2.0 for s in case.trace.steps if s.skipped and s.loss_scale), default=math.inf)
    skips = 0
    for step in case.trace.steps:
        overflows = state.scale > _fitting_scale(step, cap)
        skips += overflows
        state.update(overflows)
    return skips


def _fitting_scale(step: StepRecord, cap: float) -> float:
    """The largest loss scale that a step is taken to stand."""
    if step.loss_scale is None:
        return math.inf
    peak = max((g for g in step.grad_abs_max if g is not None), default=0.0)
    if step.skipped or not math.isfinite(peak):
        return step.loss_scale / 2.0
    return max(step.loss_scale, min(cap, _HALF_MAX * step.loss_scale / peak) if peak > 0.0 else cap)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _scaler_with(case: Case, init: float | None, growth: int | None, skips: int) -> Candidate:
    values = {}
    if init is not None:
        values["init_scale"] = f"{init:.1f}" if init >= 1.0 else repr(init)
    if growth is not None:
        values["growth_interval"] = str(growth)
    text = f"GradScaler({', '.join(f'{k}={v}' for k, v in values.items())})"
    if case.finding.code == "NP103":  # else it is not the scale that overflows, and the replay says nothing
        text += f", {skips} skips in the replay"
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


def _wanted_scale(case: Case) -> float | None:
    """The scale that lifts the largest lost gradient into the normal range, as the finding asks for."""
    lost = case.finding.evidence.get("abs_max_where_lost")
    if not isinstance(lost, (int, float)) or lost <= 0:
        return None
    return float(2.0 ** min(24, max(1, math.ceil(math.log2(2.0**-14 / lost)) + 4)))  # GradScaler's own reach


def _scale_backward(editor: Editor, line: int, scaler: str) -> None:
    call, loss = editor.script.method_call(line, "backward")
    assert isinstance(call.func, ast.Attribute)
    editor.replace(call.func.value, f"{scaler}.scale({loss})")

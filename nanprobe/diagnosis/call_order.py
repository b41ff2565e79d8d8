"""AMP's calls in the wrong order: one small rule each, over the calls of a stage as they happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from nanprobe.diagnosis import accumulation
from nanprobe.diagnosis.call_rules import CLEARS, at_call, optimizer_of
from nanprobe.diagnosis.trail import base_name
from nanprobe.diagnosis.wording import figure, scale_figure, times
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, Phase, StageTrace

_CLIPS = frozenset({"clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"})


@dataclass(frozen=True, slots=True)
class _State:
    """What is true before a call."""

    scaled: bool = False  # gradients of a scaled loss exist
    pending: bool = False  # a loss was scaled, backward has not run yet
    unscaled: frozenset[str] = field(default_factory=frozenset)  # optimizers whose gradients were unscaled
    stepping: str | None = None  # optimizer that scaler.step is stepping now


def findings(trace: StageTrace) -> list[Finding]:
    """Every rule that the calls of the stage break, each with its first breach."""
    rules: tuple[Callable[[StageTrace], Finding | None], ...] = (
        clipped_before_unscale,
        stepped_on_scaled_gradients,
        never_updated,
        accumulation.updated_every_micro_batch,
        accumulation.stepped_every_micro_batch,
        clipped_other_optimizer,
        stepped_inside_autocast,
        accumulation.never_cleared,
    )
    found = [rule(trace) for rule in rules]
    return [f for f in found if f is not None]


def clipped_before_unscale(trace: StageTrace) -> Finding | None:
    """NP601: a clip of gradients that still carry the loss scale."""
    breaches = [c for state, c in _walk(trace) if c.name in _CLIPS and state.scaled and not state.unscaled]
    if not breaches:
        return None
    call = breaches[0]
    scale = _scale_at(trace, call.step)
    if scale is None or scale <= 1.0 or _unscaled_by_hand(trace):
        return None
    limit = call.details.get("limit")
    norm = call.details.get("norm")
    seen = (
        f" It measured a norm of {figure(norm)} against a limit of {limit}; unscaled it is {figure(norm / scale)}."
        if isinstance(norm, float)
        else ""
    )
    return at_call(
        trace,
        call,
        "NP601",
        {"scale": scale_figure(scale)},
        f"{call.name} ran {times(len(breaches))} in {len(trace.steps)} steps while the gradients were multiplied by "
        f"{scale_figure(scale)}, before unscale_.{seen}",
        {"loss_scale": scale, "times_seen": len(breaches), "scaled_norm": norm, "clip_limit": limit},
    )


def stepped_on_scaled_gradients(trace: StageTrace) -> Finding | None:
    """NP602: `optimizer.step()` where `scaler.step(optimizer)` belongs."""
    breaches = [
        c
        for state, c in _walk(trace)
        if c.name == "optimizer.step"
        and state.scaled
        and state.stepping is None
        and optimizer_of(c) not in state.unscaled
    ]
    if not breaches or _unscaled_by_hand(trace):
        return None
    scale = _scale_at(trace, breaches[0].step)
    if scale is None or scale <= 1.0:
        return None
    return at_call(
        trace,
        breaches[0],
        "NP602",
        {"scale": figure(scale)},
        f"The optimizer stepped {len(breaches)} times on gradients multiplied by {figure(scale)}, outside scaler.step.",
        {"loss_scale": scale, "times_seen": len(breaches)},
    )


def never_updated(trace: StageTrace) -> Finding | None:
    """NP603: `scaler.step` again and again, `scaler.update` never."""
    steps = [c for c in trace.calls if c.name == "scaler.step"]
    if len(steps) < 2 or any(c.name == "scaler.update" for c in trace.calls):
        return None
    return at_call(
        trace,
        steps[0],
        "NP603",
        {"steps": len(steps)},
        f"scaler.step was called {len(steps)} times and scaler.update never, so the loss scale stays where it began.",
        {"scaler_steps": len(steps)},
    )


def clipped_other_optimizer(trace: StageTrace) -> Finding | None:
    """NP615: with several optimizers, a clip of the gradients of one that was not unscaled."""
    for state, call in _walk(trace):
        if call.name not in _CLIPS or not state.scaled or not state.unscaled:
            continue
        owner = next((o for o in _owners(call) if o not in state.unscaled), None)
        if owner is not None:
            return at_call(
                trace,
                call,
                "NP615",
                {"optimizer": owner},
                f"{call.name} cuts gradients of {owner}, which still carry the loss scale; only those of "
                f"{', '.join(sorted(state.unscaled))} were unscaled.",
                {"unscaled": sorted(state.unscaled), "clipped": owner},
            )
    return None


def stepped_inside_autocast(trace: StageTrace) -> Finding | None:
    """NP606: an autocast context that outlives an optimizer step (error), or a backward pass in one (warning)."""
    spans = _autocast_spans(trace)
    for entered, inside in spans:
        steps = [c for c in inside if c.name == "optimizer.step"]
        if len(steps) >= 2:
            return at_call(
                trace,
                entered,
                "NP606",
                {"what": "the optimizer step"},
                f"{len(steps)} optimizer steps ran inside one autocast context: it keeps casting the weights it "
                "saw first.",
                {"steps_inside": len(steps)},
            )
    backwards = [c for c in trace.calls if c.name == "backward" and c.details.get("autocast") is True]
    if not backwards or not trace.as_written:
        return None
    found = at_call(
        trace,
        backwards[0],
        "NP606",
        {"what": "the backward pass"},
        f"{len(backwards)} backward passes ran inside autocast, which PyTorch advises against.",
        {"times_seen": len(backwards)},
    )
    return replace(found, severity=Severity.NOTE)


def _walk(trace: StageTrace) -> Iterator[tuple[_State, CallRecord]]:
    """Each call with what was true before it."""
    state = _State()
    for call in trace.calls:
        if state.stepping is not None and call.name not in ("scaler.unscale_", "optimizer.step", "backward"):
            state = replace(state, stepping=None)
        yield state, call
        state = _after(state, call)


def _after(state: _State, call: CallRecord) -> _State:
    if call.name == "scaler.scale":
        return replace(state, pending=True)
    if call.name == "backward":
        return replace(state, scaled=state.scaled or state.pending, pending=False)
    if call.name == "scaler.unscale_":
        return replace(state, unscaled=state.unscaled | {optimizer_of(call)})
    if call.name == "scaler.step":
        return replace(state, stepping=optimizer_of(call))
    if call.name == "optimizer.step":
        return replace(state, stepping=None)
    if call.name == "scaler.update":
        return _State()
    if call.name in CLEARS:
        return replace(state, scaled=False, unscaled=frozenset())
    return state


def _owners(call: CallRecord) -> list[str]:
    """The optimizers that own the parameters a call was given, where that is known."""
    named = call.details.get("optimizers") or call.details.get("optimizer")
    if isinstance(named, str):
        return [named]
    return [str(name) for name in named] if isinstance(named, (list, tuple)) else []


def _autocast_spans(trace: StageTrace) -> list[tuple[CallRecord, list[CallRecord]]]:
    spans: list[tuple[CallRecord, list[CallRecord]]] = []
    open_spans: list[tuple[CallRecord, list[CallRecord]]] = []
    for call in trace.calls:
        if call.name == "autocast.enter":
            open_spans.append((call, []))
            spans.append(open_spans[-1])
        elif call.name == "autocast.exit":
            if open_spans:
                open_spans.pop()
        else:
            for _, inside in open_spans:
                inside.append(call)
    return spans


def _unscaled_by_hand(trace: StageTrace) -> bool:
    """Whether a deep step shows gradients divided by the loss scale between backward and the step."""
    for deep in trace.deep_steps:
        scale = deep.loss_scale
        if not scale or scale <= 1.0:
            continue
        for op in deep.ops:
            if op.phase is not Phase.UPDATE or base_name(op.op) not in {"mul", "div"}:
                continue
            factors = [s for s in op.scalars if s > 0.0]
            if any(abs(f * scale - 1.0) < 1e-3 or abs(f / scale - 1.0) < 1e-3 for f in factors):
                return True
    return False


def _scale_at(trace: StageTrace, step: int) -> float | None:
    scales = [s.loss_scale for s in trace.steps if s.index >= step and s.loss_scale is not None]
    return scales[0] if scales else None

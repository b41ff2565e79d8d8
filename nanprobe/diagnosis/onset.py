"""When a fault that leaves no NaN began, read off the record of every step: gradients gone, weights standing still."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from nanprobe.diagnosis.noise import noisy_gradients
from nanprobe.formats import FloatFormat, format_named
from nanprobe.records import DeepStep, ExternalKind, StageName, StageTrace, StepRecord, UpdateRecord

# So many steps without a change in the largest weight are no coincidence: our choice.
STILL_STEPS = 3
# Source: DESIGN section 6: updates count as swallowed when nine in ten elements that should change stay as they were.
_STILL = 0.9
# An update that reaches less than this share of what it reached at the start has stopped for some: our choice.
_STOPPED = 0.7


def dead_gradients(trace: StageTrace, reference: StageTrace | None = None) -> dict[int, frozenset[str]]:
    """By step, the parameters whose gradient is gone in low precision and is not in other steps; no others.

    Gone: the largest element is 0, or one or two of the format's smallest steps, which leaves less than half of any
    norm. What the fp32 stage (`reference`) has as 0 in the same step, or as rounding noise throughout, is not missed.
    """
    if trace.name is StageName.FP32:
        return {}
    fmt = format_named(trace.dtype)
    named = [_by_name(trace, step) for step in trace.steps]
    alive = {name for grads in named for name, g in grads.items() if not _is_gone(g, fmt)}
    alive -= noisy_gradients(reference) if reference is not None else frozenset()
    zeros = _zeros(reference)
    found = {}
    for step, grads in zip(trace.steps, named, strict=True):
        gone = {name for name, g in grads.items() if _is_gone(g, fmt)}
        missed = frozenset((gone & alive) - zeros.get(step.index, frozenset()))
        if missed:
            found[step.index] = missed
    return found


def still_weights(trace: StageTrace) -> tuple[int, ...]:
    """Steps at which the parameters that the last deep step shows to stand still last moved no more; at most 2.

    Only a parameter that moved in the first deep step can have stopped. Empty for a raw stage put around the script.
    """
    deep = sorted((d for d in trace.deep_steps if d.updates), key=lambda d: d.step)
    if len(deep) < 2 or (trace.name is StageName.FP16 and not trace.as_written):
        return ()
    before = {u.name: u for u in deep[0].updates}
    stopped = [u.name for u in deep[-1].updates if u.name in before and _has_stopped(before[u.name], u, deep[-1])]
    onsets = sorted({k for k in (_onset(trace, name) for name in stopped) if k is not None})
    return tuple(dict.fromkeys([*onsets[:1], *onsets[-1:]]))


def _has_stopped(before: UpdateRecord, now: UpdateRecord, deep: DeepStep) -> bool:
    if now.dtype not in ("float16", "bfloat16"):
        return False
    if _swallowed(now) >= _STILL:
        return _swallowed(before) < _STILL
    return _state_overflowed(deep) and now.changed_fraction < _STOPPED * before.changed_fraction


def _swallowed(update: UpdateRecord) -> float:
    meant = update.changed_fraction + update.swallowed_fraction
    return update.swallowed_fraction / meant if meant > 0.0 else 0.0


def _state_overflowed(deep: DeepStep) -> bool:
    return any(e.kind is ExternalKind.OPTIMIZER_STATE and e.stats.inf_count for e in deep.externals)


def _onset(trace: StageTrace, name: str) -> int | None:
    """The first step from which on the largest weight of a parameter stays the same to the end."""
    position = next((k for k, p in enumerate(trace.parameters) if p.name == name), None)
    known = [(s.index, _at(s.weight_abs_max, position)) for s in trace.steps]
    values = [(index, value) for index, value in known if value is not None]
    moved = [index for (_, a), (index, b) in itertools.pairwise(values) if a != b]
    first = next((index for index, _ in values[1:] if not moved or index > moved[-1]), None)
    last = values[-1][0] if values else 0
    return first if first is not None and last - first + 1 >= STILL_STEPS else None


def _zeros(reference: StageTrace | None) -> dict[int, frozenset[str]]:
    if reference is None:
        return {}
    return {s.index: frozenset(n for n, g in _by_name(reference, s).items() if g == 0.0) for s in reference.steps}


def _by_name(trace: StageTrace, step: StepRecord) -> dict[str, float]:
    pairs = zip(trace.parameters, step.grad_abs_max, strict=False)
    return {p.name: g for p, g in pairs if g is not None}


def _is_gone(grad: float, fmt: FloatFormat) -> bool:
    # Only a value of the format's own grid: an FP32 gradient that is small in earnest is hardly ever just this.
    return grad in (0.0, fmt.min_subnormal, 2.0 * fmt.min_subnormal)


def _at(values: Iterable[float | None], position: int | None) -> float | None:
    found = tuple(values)
    return found[position] if position is not None and position < len(found) else None

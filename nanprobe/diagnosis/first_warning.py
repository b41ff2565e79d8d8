"""How long before a failure its cause could have been seen: the first sign of the same kind, at the same place.

Nothing but what was measured counts: the record of every step, and the steps that were looked at operation by
operation. Where there was no sign, or none was measured, there is no warning.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from nanprobe.diagnosis.names import is_within
from nanprobe.diagnosis.scaling import MAX_CALIBRATION_SKIPS
from nanprobe.diagnosis.symptoms import nonfinite_names
from nanprobe.diagnosis.trail import bad_count
from nanprobe.diagnosis.trends import OVERFLOWING_WEIGHT_RATIO, Growth, trend_before
from nanprobe.diagnosis.wording import figure, op_label, percent, place_label
from nanprobe.diagnosis.wrong_values import lost_guard
from nanprobe.findings import Finding
from nanprobe.formats import format_named
from nanprobe.records import DeepStep, ExternalKind, OpRecord, ParameterInfo, Phase, StageTrace, StepRecord

# Source: the project's issue: less than two doublings to the end of the format is a warning.
LOW_HEADROOM_BITS = 2.0
# A gradient of which this share is flushed is on its way down; a few flushed elements are usual. Our choice.
FLUSHING = 0.1
# Half of the updates rounded away: our choice, on the way to the nine in ten that are an error.
SWALLOWING = 0.5


@dataclass(frozen=True, slots=True)
class Sign:
    """What could be seen of a cause before it did harm."""

    step: int
    words: str  # "the gradient of a.weight had 1.6 bits of headroom left"
    grade: float = 0.0  # of two signs in one step the one with the lower grade is told


Signs = Iterator[Sign]


def first_warning(finding: Finding, trace: StageTrace) -> Sign | None:
    """The earliest sign of a finding's cause in the steps before it; None when there was none."""
    if finding.step is None:
        return None
    before = [
        sign for look in _LOOKS.get(finding.code, ()) for sign in look(finding, trace) if sign.step < finding.step
    ]
    before = [sign for sign in before if sign.step >= 0]
    return min(before, key=lambda s: (s.step, s.grade, s.words), default=None)


def with_first_warning(finding: Finding, trace: StageTrace) -> Finding:
    """The finding with its first warning as evidence and as a sentence; as it is when there was none."""
    sign = first_warning(finding, trace)
    if sign is None or finding.step is None:
        return finding
    earlier = finding.step - sign.step
    sentence = f"Could be seen {earlier} step{'s' if earlier > 1 else ''} earlier: at step {sign.step} {sign.words}."
    evidence = {
        "first_warning_step": sign.step,
        "first_warning_steps_earlier": earlier,
        "first_warning": sign.words,
    }
    return replace(finding, why=f"{finding.why} {sentence}", evidence={**finding.evidence, **evidence})


def _operation_nears_the_end(finding: Finding, trace: StageTrace) -> Signs:
    """The same operation in the steps looked at before, less than two doublings from the end of its format."""
    for deep in trace.deep_steps:
        ops = [op for op in deep.ops if _is_same(op, finding)]
        if not ops or any(bad_count(s) for op in ops for s in op.outputs):
            continue
        op = max(ops, key=lambda o: (_peak(o), -o.index))
        fmt, peak = format_named(op.outputs[0].dtype), _peak(op)
        bits = fmt.headroom_bits(peak)
        if bits < LOW_HEADROOM_BITS:
            yield Sign(
                deep.step,
                f"{op_label(op)} at {place_label(op)} reached {figure(peak)}, which left {_bits(bits)} of headroom",
                bits,
            )


def _scaled_gradient_nears_the_end(finding: Finding, trace: StageTrace) -> Signs:
    return _gradient_nears_the_end(finding, trace, unscaled=False)


def _unscaled_gradient_nears_the_end(finding: Finding, trace: StageTrace) -> Signs:
    return _gradient_nears_the_end(finding, trace, unscaled=True)


def _gradient_nears_the_end(finding: Finding, trace: StageTrace, unscaled: bool) -> Signs:
    fmt, concerned = format_named(trace.dtype), _concerned(finding, trace)
    for step in trace.steps:
        for name, size in _gradients(trace, step, concerned):
            bits = fmt.headroom_bits(size / step.loss_scale if unscaled and step.loss_scale else size)
            if bits < LOW_HEADROOM_BITS:
                kind = "gradient, loss scale taken out," if unscaled else "gradient"
                yield Sign(step.index, f"the {kind} of {name} had {_bits(bits)} of headroom left", bits)


def _gradient_nears_zero(finding: Finding, trace: StageTrace) -> Signs:
    """The whole gradient below the smallest normal number, where every element loses digits and most are flushed."""
    fmt, concerned = format_named(trace.dtype), _concerned(finding, trace)
    for step in trace.steps:
        for name, size in _gradients(trace, step, concerned):
            if 0.0 < size < fmt.min_normal:
                yield Sign(
                    step.index,
                    f"the largest element of the gradient of {name} was {figure(size)}, below the smallest normal "
                    f"number of {fmt.name} ({figure(fmt.min_normal)})",
                    size,
                )


def _share_flushed_rises(finding: Finding, trace: StageTrace) -> Signs:
    concerned = _concerned(finding, trace)
    for deep in trace.deep_steps:
        for grad in deep.grads:
            if grad.name in concerned and grad.flushed_fraction >= FLUSHING and not bad_count(grad.stats):
                share = percent(grad.flushed_fraction)
                yield Sign(
                    deep.step, f"{share} of the gradient of {grad.name} was flushed to 0", 1.0 - grad.flushed_fraction
                )


def _loss_scale_falls(finding: Finding, trace: StageTrace) -> Signs:
    """The scale further below its highest value than calibration leads it: the step at which that is first so."""
    highest = 0.0
    for step in trace.steps:
        scale = step.loss_scale or step.loss_factor or 0.0
        highest = max(highest, scale)
        if 0.0 < scale <= highest * 2.0**-MAX_CALIBRATION_SKIPS:
            what = "loss scale" if step.loss_scale is not None else "factor that the script multiplies its loss by"
            yield Sign(step.index, f"the {what} had fallen from {figure(highest)} to {figure(scale)}", 10.0)
            return


def _share_swallowed_rises(finding: Finding, trace: StageTrace) -> Signs:
    concerned = _concerned(finding, trace)
    for deep in trace.deep_steps:
        for update in deep.updates:
            meant = update.changed_fraction + update.swallowed_fraction
            share = update.swallowed_fraction / meant if meant > 0.0 else 0.0
            if update.name in concerned and share >= SWALLOWING:
                yield Sign(deep.step, f"{percent(share)} of the update of {update.name} was rounded away", 1.0 - share)


def _operation_flushes(finding: Finding, trace: StageTrace) -> Signs:
    """The same operation, with its constant or a part of its result flushed to 0, in a step that still went well."""
    for deep in trace.deep_steps:
        for op in deep.ops:
            if not _is_same(op, finding):
                continue
            guard, lost = lost_guard(op), sum(s.flushed_count for s in op.outputs)
            if guard is not None:
                fmt = format_named(op.outputs[0].dtype)
                yield Sign(deep.step, f"the constant {figure(guard)} at {place_label(op)} was 0 in {fmt.name}")
            elif lost:
                total = sum(s.numel for s in op.outputs)
                yield Sign(
                    deep.step, f"{lost} of {total} results of {op_label(op)} at {place_label(op)} were flushed to 0"
                )


def _weight_nears_the_end(finding: Finding, trace: StageTrace) -> Signs:
    concerned = [(k, p) for k, p in enumerate(trace.parameters) if p.name in _concerned(finding, trace)]
    for step in trace.steps:
        for position, info in concerned:
            size = step.weight_abs_max[position] if position < len(step.weight_abs_max) else None
            if size is None or not math.isfinite(size):
                continue
            bits = format_named(info.dtype).headroom_bits(size)
            if bits < LOW_HEADROOM_BITS:
                # What is known of a weight in a step is its value after the step's update.
                yield Sign(step.index, f"{info.name} had {_bits(bits)} of headroom left", bits)


def _state_nears_the_end(finding: Finding, trace: StageTrace) -> Signs:
    """Optimizer state of the same name, as it was before the update of a step looked at."""
    for deep in trace.deep_steps:
        for external in deep.externals:
            if external.kind is not ExternalKind.OPTIMIZER_STATE or external.name != finding.parameter:
                continue
            bits = format_named(external.stats.dtype).headroom_bits(external.stats.abs_max)
            if bits < LOW_HEADROOM_BITS and not bad_count(external.stats):
                peak = figure(external.stats.abs_max)
                yield Sign(deep.step, f"{external.name} held {peak}, which left {_bits(bits)} of headroom", bits)


def _leader_passes(finding: Finding, trace: StageTrace) -> Signs:
    """The quantity that grew first, at the step at which it passed its threshold."""
    leading = finding.evidence.get("grew_first")
    for threshold in ({}, {"weight_ratio": OVERFLOWING_WEIGHT_RATIO}):
        growth = trend_before(trace, finding.step, **threshold).named(str(leading))
        if growth is not None and growth.diverging and growth.step is not None:
            yield Sign(growth.step, _passed(growth, trace))
            return


def _passed(growth: Growth, trace: StageTrace) -> str:
    words = f"the {growth.name} had passed {figure(growth.threshold)} times {_its(growth.name)} start"
    largest = _largest_in(growth, trace)
    return f"{words}, most of all in {largest}" if largest else words


def _its(name: str) -> str:
    return "their" if name == "weights" else "its"


def _largest_in(growth: Growth, trace: StageTrace) -> str | None:
    """The parameter that holds the leading gradient or weight in that step; None for the loss."""
    step = next((s for s in trace.steps if s.index == growth.step), None)
    if step is None or growth.name == "loss":
        return None
    values = step.grad_abs_max if growth.name == "gradient" else step.weight_abs_max
    known = [
        (v, p.name)
        for p, v in zip(trace.parameters, values, strict=False)
        if v is not None and math.isfinite(v) and p.master_of is None
    ]
    return min(known, key=lambda k: (-k[0], k[1]))[1] if known else None


_Look = Callable[[Finding, StageTrace], Signs]
# What can be seen beforehand of each cause. Data, graph faults and calls in the wrong order come without a warning.
_LOOKS: dict[str, tuple[_Look, ...]] = {
    "NP101": (_operation_nears_the_end,),
    "NP102": (_operation_nears_the_end, _unscaled_gradient_nears_the_end),
    "NP103": (_operation_nears_the_end, _scaled_gradient_nears_the_end),
    "NP104": (_operation_nears_the_end,),
    "NP105": (_operation_nears_the_end, _weight_nears_the_end, _state_nears_the_end),
    "NP106": (_operation_nears_the_end,),
    "NP107": (_operation_nears_the_end,),
    "NP108": (_operation_nears_the_end,),
    "NP201": (_gradient_nears_zero, _share_flushed_rises, _loss_scale_falls),
    "NP202": (_share_swallowed_rises,),
    "NP203": (_operation_flushes,),
    "NP204": (_loss_scale_falls,),
    "NP411": (_operation_nears_the_end,),
    "NP501": (_leader_passes,),
}


def _is_same(op: OpRecord, finding: Finding) -> bool:
    """Whether an operation of another step is the one the finding is about: same operator, module, line and phase."""
    place = (finding.source.file, finding.source.line) if finding.source else None
    here = (op.source.file, op.source.line) if op.source else None
    same = (op.op, op.module, here, op.phase) == (finding.op, finding.module, place, finding.phase)
    return same and bool(op.outputs)


def _peak(op: OpRecord) -> float:
    return max(s.abs_max for s in op.outputs)


def _concerned(finding: Finding, trace: StageTrace) -> frozenset[str]:
    """The parameters a finding is about: those it names, else those of its module, else those that broke with it."""
    named = {*finding.parameters, *filter(None, [finding.parameter])} & {p.name for p in trace.parameters}
    if named:
        return frozenset(named)
    if finding.module is not None:
        inside = frozenset(p.name for p in trace.parameters if is_within(p.name, finding.module))
        if inside:
            return inside
    step = next((s for s in trace.steps if s.index == finding.step), None)
    return frozenset(nonfinite_names(trace, step)) if step is not None else frozenset()


def _gradients(trace: StageTrace, step: StepRecord, names: frozenset[str]) -> Iterator[tuple[str, float]]:
    """Name and size of each gradient that was made in the stage's low format, as backward left it."""
    for info, size in zip(trace.parameters, step.grad_abs_max, strict=False):
        if info.name in names and size is not None and math.isfinite(size) and _is_low(trace, info):
            yield info.name, size


def _is_low(trace: StageTrace, info: ParameterInfo) -> bool:
    """Whether a parameter's gradient is on the grid of the stage's format; master copies are filled afterwards."""
    if info.master_of is not None:
        return False
    if info.dtype == trace.dtype:
        return True
    return any(_made_low(deep, info.name, trace.dtype) for deep in trace.deep_steps)


def _made_low(deep: DeepStep, name: str, dtype: str) -> bool:
    writers = {w for g in deep.grads if g.name == name for w in g.writers}
    return any(
        dtype in (*(s.dtype for s in op.outputs), *(record.dtype for record in op.inputs))
        for op in deep.ops
        if op.index in writers and op.phase is Phase.BACKWARD
    )


def _bits(bits: float) -> str:
    return f"{bits:.1f} bits"

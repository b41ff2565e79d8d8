"""Whether a treated run is sound, or only looks so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from nanprobe.diagnosis import findings_of
from nanprobe.diagnosis.scaling import scale_habit
from nanprobe.findings import Finding, Kind, Severity
from nanprobe.records import Outcome, StageName, StageTrace, StepRecord
from nanprobe.remedies.candidate import Case

# More than half of a gradient wrong is another gradient: our choice.
MAX_GRADIENT_ERROR = 0.5
# A loss that falls by less than this share of its size does not count as falling: our choice.
FALLS = 0.1
# And half of what FP32 reaches must be reached: our choice.
SHARE_OF_FALL = 0.5
# Where nothing in FP32 can be compared, a loss may at most grow so much: our choice.
MAX_GROWTH = 10.0
# A gradient this much smaller than the first step's may be flushed, it moves nothing any more: our choice.
LEARNED = 1e-3
STILL, THEN = "still ", "then "  # how the reason begins when a finding is the reason: the same one, or another
_WINDOW = 5
_EXTRA_STEPS = 10  # past the failing one, so that the run shows more than one good step there: our choice


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of a treated run."""

    reason: str | None  # why it is refused; None: it is verified
    next_finding: Finding | None = None  # what fails now, where that is why
    final_loss: float | None = None  # mean of the last steps
    reference_loss: float | None = None  # the same of the FP32 stage, over the same steps
    gradient_error: float | None = None  # relative, against FP32

    @property
    def verified(self) -> bool:
        """It helps."""
        return self.reason is None


def steps_wanted(case: Case, asked: int) -> int:
    """How many steps a treated run takes."""
    return max(asked, (case.finding.step or 0) + 1 + _EXTRA_STEPS)


def judge(case: Case, treated: StageTrace, same_data: bool = True) -> Judgement:
    """Verified, or refused with the reason: the first of the rules below that the run breaks.

    Without the `same_data`, in the same order, nothing can be compared step by step.
    """
    next_finding = _first_error(treated)
    rules: list[Callable[[Case, StageTrace], str | None]] = [
        _did_not_end,
        _too_few_steps,
        lambda *_: None if next_finding is None else _still(case.finding, next_finding),
        _not_finite,
        _skips,
        _dead_gradients,
    ]
    if same_data:
        rules += [_wrong_gradients, _loss_stands_still]
    reason = next(filter(None, (rule(case, treated) for rule in rules)), None)
    reference = case.reference
    count = min(len(treated.steps), len(reference.steps)) if reference is not None else 0
    return Judgement(
        reason,
        next_finding if reason and reason.startswith((STILL, THEN)) else None,
        _last_loss(treated.steps),
        None if reference is None or not count else _last_loss(reference.steps[:count]),
        gradient_error(case, treated) if same_data else _recheck_error(treated),
    )


def gradient_error(case: Case, treated: StageTrace) -> float | None:
    """The larger of two relative errors: against the FP32 re-check of the same steps, and against the first step of
    the FP32 run from the same seed; None where neither can be told.
    """
    errors = [e for e in (_recheck_error(treated), _first_step_error(case, treated)) if e is not None]
    return max(errors, default=None)


def _still(before: Finding, after: Finding) -> str:
    same = (before.code, before.source) == (after.code, after.source)
    return f"{STILL if same else THEN}{after.code}: {after.title}"


def _first_error(treated: StageTrace) -> Finding | None:
    errors = (f for f in findings_of(treated) if f.severity is Severity.ERROR)
    return next((f for f in errors if not _has_learned(treated, f)), None)


def _has_learned(treated: StageTrace, finding: Finding) -> bool:
    """Whether a flush is of gradients that are next to nothing, because there is nothing left to learn."""
    lost, scale = finding.evidence.get("recheck_abs_max"), finding.evidence.get("loss_scale")
    if finding.code != "NP201" or not isinstance(lost, float) or not isinstance(scale, float):
        return False
    first = max(_largest_gradients(treated).values(), default=0.0)
    return math.isfinite(first) and lost / scale < LEARNED * first


def _did_not_end(case: Case, treated: StageTrace) -> str | None:
    if treated.outcome is Outcome.COMPLETED:
        return None
    return f"the run did not end: {treated.reason or treated.outcome.value}"


def _too_few_steps(case: Case, treated: StageTrace) -> str | None:
    """Fewer steps than led to the failure prove nothing; a few less may be the rows that were left out."""
    reached = len(treated.steps)
    if reached and reached > 0.8 * (case.finding.step or 0):
        return None
    return f"the run ended after {reached} steps, before the one that fails"


def _not_finite(case: Case, treated: StageTrace) -> str | None:
    for step in treated.steps:
        bad = not step.skipped and not all(math.isfinite(g) for g in step.grad_abs_max if g is not None)
        if bad or (step.loss is not None and not math.isfinite(step.loss)) or step.nonfinite_weights:
            return f"step {step.index} is still not finite"
    return None


def _skips(case: Case, treated: StageTrace) -> str | None:
    habit = scale_habit(treated)
    return f"{len(habit.steps)} of {habit.total} steps are skipped" if habit.repeated else None


def _dead_gradients(case: Case, treated: StageTrace) -> str | None:
    """Gradients that are exactly 0 in every step, and were not before the failure, nor in FP32."""
    alive = _alive((case.reference or case.trace).steps, case.reference or case.trace)
    dead = alive - _alive(treated.steps, treated)
    known = {p.name for p in treated.parameters}
    dead &= known
    return (
        f"the gradients of {len(dead)} of {len(alive)} parameters are 0 throughout"
        if 2 * len(dead) > len(alive)
        else None
    )


def _alive(steps: Sequence[StepRecord], trace: StageTrace) -> set[str]:
    return {
        p.name
        for step in steps
        for p, g in zip(trace.parameters, step.grad_abs_max, strict=False)
        if g is not None and g != 0.0
    }


def _wrong_gradients(case: Case, treated: StageTrace) -> str | None:
    error = gradient_error(case, treated)
    if error is None or error <= MAX_GRADIENT_ERROR:
        return None
    return f"the gradients are {error:.0%} off those of FP32"


def _recheck_error(treated: StageTrace) -> float | None:
    wrong = total = 0.0
    for deep in treated.deep_steps:
        for grad in deep.grads:
            if grad.relative_error is None or not grad.shadow_norm or not math.isfinite(grad.relative_error):
                continue
            if math.isfinite(grad.shadow_norm):
                scale = deep.loss_scale or 1.0
                wrong += (grad.relative_error * grad.shadow_norm / scale) ** 2
                total += (grad.shadow_norm / scale) ** 2
    return math.sqrt(wrong / total) if total else None


def _first_step_error(case: Case, treated: StageTrace) -> float | None:
    """Of the first step, in which the weights are the same: its gradients' largest magnitudes, one a parameter."""
    reference = case.reference
    if reference is None and (case.finding.step or 0) > 0:
        reference = case.trace
    if reference is None:
        return None
    known, new = _largest_gradients(reference), _largest_gradients(treated)
    both = [name for name in known if name in new]
    if not both or not all(math.isfinite(known[n]) and math.isfinite(new[n]) for n in both):
        return None
    total = sum(known[n] ** 2 for n in both)
    if not total:
        return None
    factor = _hand_made_factor(treated, sum(known[n] * new[n] for n in both) / total)
    return math.sqrt(sum((known[n] - new[n] / factor) ** 2 for n in both) / total)


def _hand_made_factor(treated: StageTrace, measured: float) -> float:
    """A power of two that the gradients of a raw FP16 loop may be off by, which scales its loss by hand; else 1.

    Its first step comes after the overflows that a scale in FP32 does not have.
    """
    by_hand = treated.name is StageName.FP16 and all(step.loss_scale is None for step in treated.steps)
    return 2.0 ** round(math.log2(measured)) if by_hand and measured > 0.0 else 1.0


def _largest_gradients(trace: StageTrace) -> dict[str, float]:
    if not trace.steps:
        return {}
    first = trace.steps[0]
    named = zip(trace.parameters, first.grad_abs_max, strict=False)
    return {p.name: g / (first.loss_scale or 1.0) for p, g in named if g is not None and p.master_of is None}


def _loss_stands_still(case: Case, treated: StageTrace) -> str | None:
    """The loss falls where FP32's does; where FP32 itself fails, it does not rise, and falls if training diverged."""
    known = _before_failure(case)
    count = min(len(known), len(treated.steps))
    here, there = _change(treated.steps[:count]), _change(known[:count])
    if here is not None and there is not None and there[0] - there[1] > _noticeable(known[:count], there[0]):
        fall, wanted = here[0] - here[1], there[0] - there[1]
        if fall < SHARE_OF_FALL * wanted:
            moves = f"falls by {fall:.3g}" if fall > 0.0 else f"rises by {-fall:.3g}"
            return f"the loss {moves} where FP32's falls by {wanted:.3g}"
    whole = _change(treated.steps)
    if whole is None or case.reference is not None:
        return None
    first, last = whole
    if case.finding.kind is Kind.DIVERGENCE and last > first - 0.02 * abs(first):
        return f"the loss does not fall: {first:.3g} at first, {last:.3g} at last"
    if last > MAX_GROWTH * max(abs(first), 1e-3):
        return f"the loss grows from {first:.3g} to {last:.3g}"
    return None


def _noticeable(steps: Sequence[StepRecord], first: float) -> float:
    """A fall that is more than the noise from batch to batch."""
    losses = [s.loss for s in steps if s.loss is not None and math.isfinite(s.loss)]
    return max(FALLS * abs(first), pstdev(losses[len(losses) // 2 :]))


def _before_failure(case: Case) -> tuple[StepRecord, ...]:
    """The steps to compare with: all of FP32's, or those before the one that fails in FP32 itself."""
    if case.reference is not None:
        return case.reference.steps
    # A run that diverges is no example.
    return () if case.finding.kind is Kind.DIVERGENCE else case.trace.steps[: case.finding.step or 0]


def _change(steps: Sequence[StepRecord]) -> tuple[float, float] | None:
    """Mean loss at the beginning and at the end; None for fewer than 4 losses."""
    losses = [s.loss for s in steps if s.loss is not None and math.isfinite(s.loss)]
    if len(losses) < 4:
        return None
    window = min(_WINDOW, len(losses) // 2)
    return fmean(losses[:window]), fmean(losses[-window:])


def _last_loss(steps: Sequence[StepRecord]) -> float | None:
    losses = [s.loss for s in steps if s.loss is not None]
    return fmean(losses[-_WINDOW:]) if losses else None

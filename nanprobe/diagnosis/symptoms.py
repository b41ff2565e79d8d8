"""What a stage shows on the outside, and which steps deserve a look at single operations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from nanprobe.diagnosis.causes import nonfinite_origins
from nanprobe.diagnosis.graph_table import ALLOCATORS
from nanprobe.diagnosis.onset import dead_gradients, still_weights
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.plan import SETUP_STEP
from nanprobe.records import DeepStep, ExternalKind, Outcome, StageName, StageTrace, StepRecord

# Source: DESIGN section 4: up to 8 of the steps with non-finite gradients or loss.
MAX_NONFINITE_STEPS = 8
ENOUGH_STEPS = 4  # where few steps stand out, so many are looked at: our choice, each costs several plain steps
# A run of good steps this long sets the next bad one apart from calibration: our choice, as in `scaling`.
GOOD_RUN = 3
# Steps back from the first loss that is not finite: four looks tell how fast it came. Our choice.
APPROACH = (1, 2, 4, 8)

# Half of a gradient's norm, or of the updates: what may become an error is looked at closely.
_SUSPICIOUS = 0.5


class Symptom(str, Enum):
    """What can be seen without looking at operations."""

    LOSS = "loss"
    GRADIENT = "gradient"
    WEIGHT = "weight"
    BUFFER = "buffer"
    RATE = "rate"
    CUT = "cut"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Sign:
    """One symptom at one step."""

    symptom: Symptom
    step: int
    names: tuple[str, ...] = ()  # parameters or buffers
    skipped: bool = False  # a scaler left the weights alone


def symptoms(trace: StageTrace) -> tuple[Sign, ...]:
    """Every symptom of a stage, in order of steps."""
    signs: list[Sign] = []
    for step in trace.steps:
        signs += _of_step(trace, step)
    # A loss that the script read, found not finite and did not take further.
    signs += [Sign(Symptom.LOSS, c.step) for c in trace.calls if c.name == "nonfinite_loss"]
    if graph_is_cut(trace):
        signs.append(Sign(Symptom.CUT, trace.steps[0].index if trace.steps else 0))
    if trace.error is not None:
        signs.append(Sign(Symptom.ERROR, trace.error.step))
    return tuple(signs)


def steps_to_rerun(trace: StageTrace, reference: StageTrace | None = None) -> tuple[int, ...]:
    """Steps that need a deep look and have none; empty for a healthy stage.

    `reference` is the run's fp32 stage: a gradient that is 0 there too is no symptom.
    """
    signs = symptoms(trace)
    wanted = _suspicious(trace) | _poisoned(signs) | _nonfinite(trace, signs) | _unfinished(trace)
    wanted |= _approach(trace, signs)
    wanted |= _dead(trace, dead_gradients(trace, reference)) | set(still_weights(trace))
    if _came_in_nonfinite(trace):
        wanted.add(SETUP_STEP)
    return tuple(sorted(wanted - {deep.step for deep in trace.deep_steps if not deep.coarse}))


def _suspicious(trace: StageTrace) -> set[int]:
    """Steps of which an accelerator kept whole-tensor figures only, and whose gradients or updates lost something."""
    return {
        deep.step
        for deep in trace.deep_steps
        if deep.coarse
        and (
            any(g.lost_norm_fraction >= _SUSPICIOUS for g in deep.grads)
            or any(u.swallowed_fraction >= _SUSPICIOUS for u in deep.updates)
        )
    }


def graph_is_cut(trace: StageTrace) -> bool:
    """Whether backward ran and no parameter that wants a gradient ever got one."""
    wanting = [k for k, p in enumerate(trace.parameters) if p.requires_grad]
    ran = [s for s in trace.steps if s.backward_passes > 0]
    if not trace.steps:
        return bool(wanting) and _stopped_without_gradients(trace)
    if not wanting or not ran:
        return False
    return all(s.grad_abs_max[k] is None for s in ran for k in wanting if k < len(s.grad_abs_max))


def _stopped_without_gradients(trace: StageTrace) -> bool:
    """Whether the script failed in its first step, after a backward pass that gave no parameter a gradient."""
    passes = [c for c in trace.calls if c.name == "backward"]
    if not passes or trace.error is None or trace.error.source == passes[-1].source:  # backward itself failed
        return False
    return any(deep.step == trace.error.step and deep.loss_writers and not deep.grads for deep in trace.deep_steps)


def nonfinite_names(trace: StageTrace, step: StepRecord) -> tuple[str, ...]:
    """Parameters whose gradient is not finite in a step.

    Master copies that the script fills itself do not count: their gradient is written after backward, so at the end of
    backward it is that of the step before.
    """
    named = zip(trace.parameters, step.grad_abs_max, strict=False)
    return tuple(p.name for p, g in named if g is not None and not math.isfinite(g) and p.master_of is None)


def _of_step(trace: StageTrace, step: StepRecord) -> list[Sign]:
    signs = []
    if step.loss is not None and not math.isfinite(step.loss):
        signs.append(Sign(Symptom.LOSS, step.index, (), step.skipped))
    bad = nonfinite_names(trace, step)
    if bad:
        signs.append(Sign(Symptom.GRADIENT, step.index, bad, step.skipped))
    if step.nonfinite_weights:
        signs.append(Sign(Symptom.WEIGHT, step.index, step.nonfinite_weights))
    if step.nonfinite_buffers:
        signs.append(Sign(Symptom.BUFFER, step.index, step.nonfinite_buffers))
    if step.nonfinite_settings or any(not math.isfinite(rate) for rate in step.learning_rates):
        signs.append(Sign(Symptom.RATE, step.index))
    return signs


def _poisoned(signs: tuple[Sign, ...]) -> set[int]:
    """The step after which a weight, and that after which a buffer, is first not finite."""
    wanted = set()
    for symptom in (Symptom.WEIGHT, Symptom.BUFFER):
        first = next((s.step for s in signs if s.symptom is symptom), None)
        if first is not None:
            wanted.add(first)
    return wanted


def _nonfinite(trace: StageTrace, signs: tuple[Sign, ...]) -> set[int]:
    """The first step with non-finite gradients or loss, those that follow a run of good ones, the last; at most 8.

    A stage put around the script only says what would go wrong: the first step of each kind is enough for that.
    """
    bad = sorted({s.step for s in signs if s.symptom in (Symptom.LOSS, Symptom.GRADIENT)})
    # Once weights are poisoned every later step is bad for that reason alone.
    poisoned = min((s.step for s in signs if s.symptom is Symptom.WEIGHT), default=None)
    bad = [b for b in bad if poisoned is None or b <= poisoned]
    if not bad:
        return set()
    known = set(bad)
    after_good = [b for b in bad if b >= GOOD_RUN and not known & set(range(b - GOOD_RUN, b))]
    chosen = list(dict.fromkeys([bad[0], *after_good[: MAX_NONFINITE_STEPS - 2], bad[-1]]))
    if trace.name is StageName.FP16 and not trace.as_written:
        return set([bad[0], *after_good][:2])
    rest = [b for b in bad if b not in chosen]
    while rest and len(chosen) < min(ENOUGH_STEPS, len(bad)):
        chosen.append(rest.pop(len(rest) // 2))
    return set(chosen)


def _approach(trace: StageTrace, signs: tuple[Sign, ...]) -> set[int]:
    """In low precision, steps before the first loss that is not finite: what overflowed there may have grown.

    No step but the deep ones tells how large an activation was. A raw stage put around the script is left alone.
    """
    if trace.name is StageName.FP32 or (trace.name is StageName.FP16 and not trace.as_written):
        return set()
    first = next((s.step for s in signs if s.symptom is Symptom.LOSS), None)
    known = {s.index for s in trace.steps}
    return set() if first is None else {first - back for back in APPROACH} & known


def _dead(trace: StageTrace, dead: dict[int, frozenset[str]]) -> set[int]:
    """The first step with a dead gradient, and the first with the most of them.

    A stage put around the script only says what would go wrong: there one look at the most of them is enough.
    """
    if not dead:
        return set()
    most = min(dead, key=lambda step: (-len(dead[step]), step))
    if trace.name is StageName.FP16 and not trace.as_written:
        looked_at = [dead.get(deep.step, frozenset()) for deep in trace.deep_steps]
        return {most} if len(dead[most]) > max(map(len, looked_at), default=0) else set()
    return {min(dead), most}


def _unfinished(trace: StageTrace) -> set[int]:
    """The step that the script ended in, by an exception or by leaving: its operations may be what that was about."""
    step = ended_in(trace)
    return set() if step is None else {step}


def ended_in(trace: StageTrace) -> int | None:
    """The step that was begun and never completed; None when the script ended between steps, or was killed."""
    if trace.error is not None and trace.outcome is Outcome.CRASHED:
        return trace.error.step
    left = trace.outcome is Outcome.CRASHED and "exit status" in (trace.reason or "")
    if trace.steps and (left or trace.facts.get("unfinished_forward")):
        return trace.steps[-1].index + 1
    return None


def _came_in_nonfinite(trace: StageTrace) -> bool:
    """Whether a deep step leads back to a tensor from outside that is not finite."""
    return any(_leads_outside(deep, trace) for deep in trace.deep_steps if deep.step != SETUP_STEP)


def _leads_outside(deep: DeepStep, trace: StageTrace) -> bool:
    suspicious = [e for e in deep.externals if e.stats.nan_count or e.stats.inf_count]
    if not suspicious:
        return False
    first = trace.steps[0].index if trace.steps else 0
    for origin in nonfinite_origins(Trail(deep), starts(deep, deep.step in abandoned_steps(trace))):
        if origin.external is None:
            continue
        if origin.external.kind in (ExternalKind.BATCH, ExternalKind.CONSTANT) or deep.step <= first:
            return True
    return False


def starts(deep: DeepStep, abandoned: bool = False) -> tuple[int, ...]:
    """The operations that wrote the non-finite gradients, weights and loss of a deep step.

    `abandoned`: the script gave the step up before backward, so its loss is not known; then it is taken to be the last
    number that is not finite and that nothing else was computed from.
    """
    found = {w for g in deep.grads if g.stats.nan_count or g.stats.inf_count for w in g.writers}
    found |= {w for u in deep.updates if u.nan_count or u.inf_count for w in u.writers}
    bad_ops = {op.index for op in deep.ops if any(s.nan_count or s.inf_count for s in op.outputs)}
    found |= {w for w in deep.loss_writers if w in bad_ops}
    if found or not abandoned:
        return tuple(sorted(found))
    read = {w for op in deep.ops for record in op.inputs for w in record.writers}
    # What is left in fresh memory, and written over before anything reads it, is no number of the script's.
    fresh = {op.index for op in deep.ops if base_name(op.op) in ALLOCATORS}
    ends = sorted(bad_ops - read - fresh)
    scalars = [k for k in ends if any(op.index == k and op.outputs[0].numel == 1 for op in deep.ops)]
    return tuple((scalars or ends)[-1:])


def abandoned_steps(trace: StageTrace) -> frozenset[int]:
    """Steps that the script gave up by itself: by an exception, or because it saw a loss that is not finite."""
    given_up = {c.step for c in trace.calls if c.name == "nonfinite_loss"}
    return frozenset(given_up | _unfinished(trace))

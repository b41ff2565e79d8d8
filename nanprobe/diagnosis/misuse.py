"""Misuse: what the script does with AMP, the loss or the optimizer that cannot work whatever the numbers are."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanprobe.diagnosis import call_order, refusals, resuming
from nanprobe.diagnosis.compose import compose
from nanprobe.diagnosis.scaling import MAX_CALIBRATION_SKIPS, MAX_SKIPPED_FRACTION, MIN_SKIPS, scale_habit
from nanprobe.diagnosis.scene import Scene, base_severity
from nanprobe.diagnosis.symptoms import graph_is_cut, nonfinite_names
from nanprobe.diagnosis.wording import figure, percent
from nanprobe.findings import Finding, Severity
from nanprobe.records import CallRecord, Phase, Source, StageName, StageTrace


def findings(trace: StageTrace) -> list[Finding]:
    """Every misuse that the stage shows; empty for a sound script."""
    rules: tuple[Callable[[StageTrace], Finding | None], ...] = (
        cut_off_loss,
        nonfinite_rate,
        refusals.explain,
        no_scaler,
        scaler_with_bf16,
        low_precision_weights,
        many_skipped,
        scale_set_back,
        schedule_runs_on,
        resuming.scaler_not_restored,
    )
    found = [rule(trace) for rule in rules]
    return [f for f in found if f is not None] + call_order.findings(trace)


def cut_off_loss(trace: StageTrace) -> Finding | None:
    """NP607: backward ran and no parameter ever got a gradient."""
    if not graph_is_cut(trace):
        return None
    wanting = [p.name for p in trace.parameters if p.requires_grad]
    call = next((c for c in trace.calls if c.name == "backward"), None)
    first = trace.steps[0] if trace.steps else None
    steps = max(1, len(trace.steps))  # the first may have ended the script
    slots = {"parameters": f"{len(wanting)} parameters", "steps": steps}
    return compose(
        trace,
        "NP607",
        severity=base_severity(trace),
        slots=slots,
        step=first.index if first else 0,
        phase=Phase.BACKWARD,
        source=call.source if call else (first.source if first else None),
        evidence={"parameters": len(wanting), "steps": steps},
        parameters=tuple(wanting),
        why=f"backward ran {sum(c.name == 'backward' for c in trace.calls)} times in {steps} steps, and "
        "none of the "
        f"{len(wanting)} parameters that ask for a gradient received one.",
    )


def nonfinite_rate(trace: StageTrace) -> Finding | None:
    """NP608: a learning rate or other hyper-parameter that is NaN or Inf."""
    for step in trace.steps:
        bad = [("learning rate", figure(rate)) for rate in step.learning_rates if not math.isfinite(rate)]
        bad += [(name, value) for name, _, value in (s.partition(" = ") for s in step.nonfinite_settings)]
        if bad:
            setting, value = bad[0]
            slots: dict[str, object] = {
                "setting": setting,
                "optimizer": step.optimizer or "the optimizer",
                "value": value,
                "step": step.index,
            }
            after = f" {len(step.nonfinite_weights)} weights are not finite after it." if step.nonfinite_weights else ""
            return compose(
                trace,
                "NP608",
                severity=base_severity(trace),
                slots=slots,
                step=step.index,
                phase=Phase.UPDATE,
                source=step.source,
                evidence={setting.replace(" ", "_"): value, "optimizer": step.optimizer},
                parameters=step.nonfinite_weights,
                why=f"{slots['optimizer']} was to step with a {setting} of {value} at step {step.index}, while the "
                f"loss was {figure(step.loss)}.{after}",
            )
    return None


def no_scaler(trace: StageTrace) -> Finding | None:
    """NP611: FP16 autocast of the script's own, and no loss scale of any kind."""
    asked = trace.facts.get("autocast_dtype")
    if trace.name is not StageName.AMP or not trace.as_written or asked != "float16":
        return None
    if trace.facts.get("scaler_enabled") or any(Scene(trace, d).loss_scale > 1.0 for d in trace.deep_steps):
        return None
    flushed = max((g.flushed_fraction for d in trace.deep_steps for g in d.grads), default=None)
    first = next((c for c in trace.calls if c.name == "backward"), None)
    lost = (
        f" In the steps that were looked at, up to {percent(flushed)} of a gradient's elements became 0."
        if flushed
        else ""
    )
    return compose(
        trace,
        "NP611",
        severity=Severity.WARNING,
        slots={},
        step=first.step if first else None,
        phase=Phase.CALLS,
        source=first.source if first else None,
        evidence={"flushed_fraction": flushed},
        why=f"The script runs under FP16 autocast and never scales its loss.{lost}",
    )


def scaler_with_bf16(trace: StageTrace) -> Finding | None:
    """NP612: a GradScaler that is on while autocast computes in bfloat16."""
    if trace.facts.get("autocast_dtype") != "bfloat16" or not trace.facts.get("scaler_enabled"):
        return None
    call = next((c for c in trace.calls if c.name in ("scaler.init", "scaler.scale")), None)
    return compose(
        trace,
        "NP612",
        severity=Severity.WARNING,
        slots={},
        step=call.step if call else None,
        phase=Phase.CALLS,
        source=call.source if call else None,
        evidence={"autocast_dtype": "bfloat16"},
        why="Autocast was asked for bfloat16, and GradScaler is enabled: bfloat16 overflows where FP32 does.",
    )


def low_precision_weights(trace: StageTrace) -> Finding | None:
    """NP610: an optimizer that owns FP16 or bf16 weights."""
    dtype = trace.facts.get("low_weights")
    if not trace.as_written or not isinstance(dtype, str) or trace.facts.get("masters") or trace.name is StageName.FP32:
        return None
    if not any(p.optimizer and p.dtype == dtype for p in trace.parameters):
        return None
    source = trace.steps[0].source if trace.steps else None
    owned = sum(1 for p in trace.parameters if p.optimizer and p.dtype == dtype)
    return compose(
        trace,
        "NP610",
        severity=Severity.WARNING,
        slots={"dtype": dtype},
        step=trace.steps[0].index if trace.steps else None,
        phase=Phase.CALLS,
        source=source,
        evidence={"parameters": owned, "dtype": dtype},
        why=f"{owned} parameters that the optimizer owns are {dtype}, and no FP32 copy of them was seen.",
    )


def many_skipped(trace: StageTrace) -> Finding | None:
    """NP614: more than a tenth of the steps skipped, and more of them than a calibration takes."""
    habit = scale_habit(trace)
    share = len(habit.steps) / max(1, habit.total)
    if not trace.as_written or share <= MAX_SKIPPED_FRACTION or len(habit.steps) <= MAX_CALIBRATION_SKIPS:
        return None
    guilty, times = _overflowing(trace)
    behind = (
        f" Of the gradients that overflowed, that of {guilty} is the nearest to the loss ({times} of these steps): it "
        "began there or between it and the loss."
        if guilty is not None
        else ""
    )
    return compose(
        trace,
        "NP614",
        severity=Severity.WARNING,
        step=habit.steps[0],
        phase=Phase.CALLS,
        parameter=guilty,
        source=_source_of(trace, "scaler.step"),
        slots={"share": percent(share), "where": guilty or "a layer that could not be told"},
        evidence=habit.evidence(),
        why=f"{habit.sentence()}{behind}",
    )


def _overflowing(trace: StageTrace) -> tuple[str | None, int]:
    """The last parameter (the nearest to the loss) whose gradient was not finite, in most of the skipped steps.

    Behind a loss that is not finite every gradient is bad, and none of them says anything.
    """
    bad = [nonfinite_names(trace, s) for s in trace.steps if s.skipped and (s.loss is None or math.isfinite(s.loss))]
    last = [names[-1] for names in bad if names]
    if not last:
        return None, 0
    name = max(dict.fromkeys(last), key=last.count)
    return name, last.count(name)


def scale_set_back(trace: StageTrace) -> Finding | None:
    """NP621: what the scaler learns from a skipped step is undone: a fixed scale, or a new scaler in the loop."""
    habit = scale_habit(trace)
    if len(habit.steps) < MIN_SKIPS:
        return None
    made = _made_again(trace)
    call = made or next((c for c in trace.calls if c.name == "scaler.update"), None)
    if call is None or (made is None and not _never_falls(trace)):
        return None
    how = (
        "A new GradScaler is made in the loop, and begins each time with a step that is skipped."
        if made is not None
        else "After every skipped step `scaler.update` left the scale as high as it was, or higher."
    )
    return compose(
        trace,
        "NP621",
        severity=base_severity(trace) if habit.repeated else Severity.WARNING,
        step=habit.steps[0],
        phase=Phase.CALLS,
        source=call.source,
        slots={"scale": figure(habit.first_scale), "skipped": len(habit.steps)},
        evidence=habit.evidence(),
        why=f"{habit.sentence()} {how}",
    )


def _made_again(trace: StageTrace) -> CallRecord | None:
    """The line that makes a scaler again and again, the next step being skipped nearly every time."""
    made = [c for c in trace.calls if c.name == "scaler.init" and c.details.get("enabled") is not False]
    skipped = {s.index for s in trace.steps if s.skipped}
    bad = [c for c in made if c.step in skipped]
    if len(made) < MIN_SKIPS or len({c.source for c in made}) > 1 or 2 * len(bad) < len(made):
        return None
    return made[0]


def _never_falls(trace: StageTrace) -> bool:
    """Whether each skipped step is followed by one at the same scale or a higher one."""
    scales = {s.index: s.loss_scale for s in trace.steps}
    pairs = [(scales[s.index], scales.get(s.index + 1)) for s in trace.steps if s.skipped]
    known = [(before, after) for before, after in pairs if before is not None and after is not None]
    return len(known) >= MIN_SKIPS and all(after >= before for before, after in known)


def schedule_runs_on(trace: StageTrace) -> Finding | None:
    """NP618: a learning rate schedule that counts the steps the scaler skips."""
    habit = scale_habit(trace)
    moves = sum(1 for c in trace.calls if c.name == "lr_scheduler.step")
    share = len(habit.steps) / max(1, habit.total)
    # One move in each step, skipped ones included; a schedule by epoch moves far less often.
    if share <= MAX_SKIPPED_FRACTION or len(habit.steps) < MIN_SKIPS or moves < 0.9 * habit.total:
        return None
    return compose(
        trace,
        "NP618",
        severity=Severity.WARNING if trace.as_written else Severity.NOTE,
        step=habit.steps[0],
        phase=Phase.CALLS,
        source=_source_of(trace, "lr_scheduler.step"),
        slots={"skipped": len(habit.steps), "moves": moves},
        evidence={"schedule_steps": moves, **habit.evidence()},
        why=f"The schedule moved {moves} times while the optimizer stepped {habit.total - len(habit.steps)} times: "
        "a warm-up "
        "is over before the model has seen it.",
    )


def _source_of(trace: StageTrace, name: str) -> Source | None:
    return next((c.source for c in trace.calls if c.name == name), None)

"""What the loss scale did over a stage: calibrating, as it should, or overflowing again and again."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.records import StageTrace

# More than this share of skipped steps after warm-up is no calibration. Source: DESIGN section 6 ("ghost stall").
MAX_SKIPPED_FRACTION = 0.10
# Fewer skips than this say nothing about a habit in a short run: our choice.
MIN_SKIPS = 3
# From 2^16, the usual start, so many halvings lead to 2^11, where most models are at home: our choice.
MAX_CALIBRATION_SKIPS = 5
# So many good steps in a row end the scaler's warm-up: our choice; calibration skips come one after another.
WARM_UP_ENDS_AFTER = 3


@dataclass(frozen=True, slots=True)
class Habit:
    """Skipped steps of a stage, with those of the warm-up set apart."""

    steps: tuple[int, ...]  # every skipped step
    late: tuple[int, ...]  # those after the warm-up
    total: int  # steps in all
    after_warm_up: int  # steps after the warm-up
    first_scale: float | None
    last_scale: float | None

    @property
    def repeated(self) -> bool:
        """Skipping again and again after the warm-up, or never out of it."""
        if len(self.late) >= MIN_SKIPS and len(self.late) > MAX_SKIPPED_FRACTION * self.after_warm_up:
            return True
        return len(self.steps) >= max(MIN_SKIPS, self.total // 2)

    def sentence(self) -> str:
        """The habit in words."""
        return (
            f"{len(self.steps)} of {self.total} steps were skipped, {len(self.late)} of them after the scaler's first "
            f"calibration; the scale went from {_figure(self.first_scale)} to {_figure(self.last_scale)}."
        )

    def evidence(self) -> dict[str, object]:
        """The habit in numbers."""
        return {
            "skipped_steps": len(self.steps),
            "skipped_after_warm_up": len(self.late),
            "steps": self.total,
            "first_loss_scale": self.first_scale,
            "last_loss_scale": self.last_scale,
        }


def scale_habit(trace: StageTrace) -> Habit:
    """The stage's skipped steps.

    A warm-up is the run of skips at the start, broken by at most two good steps
    in a row; it is over once the scale grows.
    """
    skipped = tuple(s.index for s in trace.steps if s.skipped)
    end = _warm_up_end(trace)
    scales = [s.loss_scale for s in trace.steps if s.loss_scale is not None]
    late = tuple(i for i in skipped if i >= end)
    after = sum(1 for s in trace.steps if s.index >= end)
    return Habit(skipped, late, len(trace.steps), after, scales[0] if scales else None, scales[-1] if scales else None)


def _warm_up_end(trace: StageTrace) -> int:
    good, before = 0, None
    for step in trace.steps:
        grown = before is not None and step.loss_scale is not None and step.loss_scale > before
        good = 0 if step.skipped else good + 1
        # A scale that has grown is past its search: what overflows afterwards is the scaler's doing.
        if grown or good == WARM_UP_ENDS_AFTER:
            return step.index + (0 if grown else 1)
        before = step.loss_scale
    return trace.steps[-1].index + 1 if trace.steps else 0


def _figure(scale: float | None) -> str:
    return "unknown" if scale is None else f"{scale:g}"

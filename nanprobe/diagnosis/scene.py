"""What a finding is written from: one stage and one deep step of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from nanprobe.diagnosis.handmade import handmade_scale
from nanprobe.diagnosis.trail import Trail
from nanprobe.findings import Severity
from nanprobe.records import DeepStep, StageName, StageTrace, StepRecord


@dataclass(frozen=True)
class Scene:
    """One deep step of one stage, and its trail."""

    trace: StageTrace
    deep: DeepStep
    setup: DeepStep | None = field(default=None)  # what the script did before its first step, where it was looked at

    @cached_property
    def trail(self) -> Trail:
        """The deep step, indexed."""
        return Trail(self.deep)

    @property
    def step(self) -> int:
        """Index of the step."""
        return self.deep.step

    @property
    def record(self) -> StepRecord | None:
        """The step's own record; None when the script ended before the step did."""
        return next((s for s in self.trace.steps if s.index == self.deep.step), None)

    @property
    def loss_scale(self) -> float:
        """The factor in the gradients of this step; 1.0 when the loss was not scaled."""
        if self.deep.loss_scale:
            return self.deep.loss_scale
        return handmade_scale(self.trail)

    def scale_of(self, step: StepRecord) -> float:
        """The factor in the gradients of any step of the stage."""
        by_hand = self.deep.loss_scale is None and self.loss_scale != 1.0
        return step.loss_scale or (step.loss_factor if by_hand else None) or 1.0

    @property
    def poisoned_by_update(self) -> str | None:
        """A parameter that this step's update made non-finite; None when it was skipped, or did no harm."""
        record = self.record
        if record is None or record.skipped or not record.nonfinite_weights:
            return None
        return record.nonfinite_weights[0]


def base_severity(trace: StageTrace) -> Severity:
    """Error, but a note in the raw FP16 stage put around a script that does not train that way itself."""
    hypothetical = trace.name is StageName.FP16 and not trace.as_written
    return Severity.NOTE if hypothetical else Severity.ERROR

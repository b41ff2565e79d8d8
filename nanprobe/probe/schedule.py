"""Which steps a stage runs, and which of them are deep."""

from __future__ import annotations

from nanprobe.plan import SETUP_STEP, StageRequest


class DeepSchedule:
    """Read from the request once."""

    def __init__(self, request: StageRequest) -> None:
        self.rerun = request.rerun
        self._until_failure = request.plan.until_failure
        self._steps = request.plan.steps
        self._armed = frozenset(request.deep_steps)
        self._ends = request.deep_ends and not request.rerun
        self._last = request.plan.steps - 1
        if request.expected_steps is not None:
            self._last = min(self._last, request.expected_steps - 1)

    @property
    def from_the_start(self) -> bool:
        """The first deep step begins with the script, not with its training."""
        return SETUP_STEP in self._armed

    def wanted(self, step: int) -> bool:
        """Whether this step is to be run at all."""
        if self.rerun:
            return step <= max(self._armed, default=SETUP_STEP)
        return self._until_failure or step < self._steps

    def is_deep(self, step: int) -> bool:
        """Whether to look at this step operation by operation."""
        if step in self._armed:
            return True
        return self._ends and (step == 0 or (step == self._last and not self._until_failure))

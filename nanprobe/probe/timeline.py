"""Where the run is: which step, which part of it."""

from __future__ import annotations

from types import FrameType

from nanprobe.records import Phase


class Timeline:
    """Counts steps and backward passes, and knows the phase of the present moment."""

    def __init__(self) -> None:
        self.step = 0  # steps completed; the index of the step under way
        self.backward_passes = 0  # in the whole run
        self.backward_in_step = 0  # since the last step
        self.backward_depth = 0
        self.backward_frame: FrameType | None = None  # the user's frame that called backward
        self.optimizer_depth = 0
        self.module_depth = 0
        self._forward_seen = False  # a model was called since the last step or backward
        self._backward_seen = False

    @property
    def in_backward(self) -> bool:
        """Between the call of backward and its return."""
        return self.backward_depth > 0

    def phase(self) -> Phase:
        """The part of the step that is running."""
        if self.in_backward:
            return Phase.BACKWARD
        if self.module_depth or self._forward_seen:
            return Phase.FORWARD
        if self.optimizer_depth or self._backward_seen:
            return Phase.UPDATE
        return Phase.DATA

    def forward(self) -> None:
        """A model is being called."""
        self._forward_seen = True
        self._backward_seen = False

    def enter_backward(self, frame: FrameType | None) -> None:
        """Backward starts."""
        self.backward_depth += 1
        if self.backward_depth == 1:
            self.backward_frame = frame

    def leave_backward(self) -> bool:
        """Backward ends; True for the outermost one."""
        self.backward_depth -= 1
        if self.backward_depth:
            return False
        self.backward_frame = None
        self.backward_passes += 1
        self.backward_in_step += 1
        self._forward_seen = False
        self._backward_seen = True
        return True

    def end_step(self) -> int:
        """The step is over; its index."""
        index = self.step
        self.step += 1
        self.backward_in_step = 0
        self._forward_seen = self._backward_seen = False
        return index

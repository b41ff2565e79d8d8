"""What the recorder asks about the moment an operation runs in: phase, module, number format, whose tensor."""

from __future__ import annotations

from types import FrameType

from torch import Tensor

from nanprobe.precision.conduct import StageConduct
from nanprobe.probe.batches import BatchWatch
from nanprobe.probe.modules import ModuleWatch
from nanprobe.probe.names import ModelNames
from nanprobe.probe.timeline import Timeline
from nanprobe.records import ExternalKind, Phase


class Identity:
    """Answers from the watchers; names of storages are looked up once a step."""

    def __init__(
        self,
        timeline: Timeline,
        names: ModelNames,
        modules: ModuleWatch,
        batches: BatchWatch,
        conduct: StageConduct,
    ) -> None:
        self._timeline = timeline
        self._names = names
        self._modules = modules
        self._batches = batches
        self._conduct = conduct
        self._storages: dict[int, tuple[ExternalKind, str]] | None = None

    def forget(self) -> None:
        """Parameters, buffers or optimizer state may have changed."""
        self._storages = None

    def phase(self) -> Phase:
        """The part of the step that is running."""
        return self._timeline.phase()

    def module_name(self) -> str | None:
        """Path of the innermost module that is running."""
        module = self._modules.innermost
        return None if module is None else self._names.module_name(module)

    def grid(self, tensor: Tensor) -> str:
        """The format a tensor's numbers are in."""
        return self._conduct.grid(tensor)

    def is_own_code(self, frame: FrameType | None) -> bool:
        """Whether the frame is the user's code inside a backward pass: a custom Function, a checkpointed block."""
        timeline = self._timeline
        if self._modules.recomputing:
            return True
        return frame is not None and timeline.in_backward and frame is not timeline.backward_frame

    def whole(self, tensor: Tensor) -> Tensor:
        """The field of a batch that a tensor is another view of; the tensor itself if of none."""
        return self._batches.whole(tensor)

    def identify(self, tensor: Tensor) -> tuple[ExternalKind, str | None, int | None, tuple[int, ...]]:
        """Kind, name, batch index and dataset indices of a tensor that no recorded operation has written."""
        if self._storages is None:
            self._storages = self._names.storages()
        known = self._storages.get(tensor.untyped_storage()._cdata)
        if known is not None:
            return known[0], known[1], None, ()
        found = self._batches.find(tensor)
        if found is not None:
            batch, path = found
            whole = self._batches.whole(tensor)
            rows = batch.dataset_indices if whole.dim() and whole.shape[0] == len(batch.dataset_indices) else ()
            return ExternalKind.BATCH, path, batch.index, rows
        owner = self._names.owner_of_gradient(tensor)
        if owner is not None:
            return ExternalKind.GRADIENT, f"the gradient of {owner}", None, ()
        near = self._batches.find_nonfinite(tensor.shape)
        if near is not None:
            return ExternalKind.BATCH, None, near.index, near.dataset_indices
        return ExternalKind.CONSTANT if tensor.dim() == 0 else ExternalKind.BATCH, None, None, ()

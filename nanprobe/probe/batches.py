"""What the DataLoader hands out: which batch, which samples of the data set, and what in it is not finite."""

from __future__ import annotations

import operator
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind, _MultiProcessingDataLoaderIter

from nanprobe.patching import Patches
from nanprobe.precision.conduct import without_modes
from nanprobe.probe import meter
from nanprobe.probe.timeline import Timeline
from nanprobe.records import BatchRecord, ExternalKind, ExternalRecord, TensorStats

_KEPT = 4  # batches remembered for matching tensors met later: prefetching wrappers run one or two ahead
_MAX_FIELDS = 32
_MAX_INDICES = 4096


@dataclass(slots=True)
class Batch:
    """A batch that was handed out."""

    index: int
    dataset_indices: tuple[int, ...]
    fields: tuple[tuple[str, Tensor, ExternalRecord], ...]


class BatchWatch:
    """Looks at every batch as it leaves a DataLoader; the last few can be found again by storage."""

    def __init__(self, timeline: Timeline, write: Callable[[object], None], started: Callable[[], None]) -> None:
        self._timeline = timeline
        self._write = write
        self._started = started
        self._recent: deque[Batch] = deque(maxlen=_KEPT)
        self._given: tuple[weakref.ref[Tensor], ...] = ()  # to the model, in the forward pass under way
        self._count = 0

    def install(self, patches: Patches) -> None:
        """Puts the patches in."""
        patches.wrap(_BaseDataLoaderIter, "__next__", self._next)
        patches.wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
        patches.wrap(_BaseDataLoaderIter, "_reset", self._reset)

    def find(self, tensor: Tensor) -> tuple[Batch, str] | None:
        """The recent batch, and the field of it, that shares the tensor's storage."""
        storage = tensor.untyped_storage()._cdata
        for batch in reversed(self._recent):
            for path, field, _ in batch.fields:
                if field.untyped_storage()._cdata == storage:
                    return batch, path
        return None

    def note_given(self, arguments: Any) -> None:
        """A model is called with these: batches that came from no DataLoader are known by them."""
        self._given = tuple(weakref.ref(tensor) for _, tensor in _float_tensors(arguments))

    def whole(self, tensor: Tensor) -> Tensor:
        """The field of a batch that the tensor is another view of (flattened, say); the tensor itself if of none.

        Rows are counted in the field, because that is how the script sees the batch.
        """
        storage = tensor.untyped_storage()._cdata
        fields = [field for batch in reversed(self._recent) for _, field, _ in batch.fields]
        for field in (*fields, *(given for ref in self._given if (given := ref()) is not None)):
            same = field.numel() == tensor.numel() and field.storage_offset() == tensor.storage_offset()
            if same and field.untyped_storage()._cdata == storage:
                return field
        return tensor

    def find_nonfinite(self, shape: torch.Size) -> Batch | None:
        """A recent batch with a non-finite field of this shape: a copy of it was made before anyone looked."""
        for batch in reversed(self._recent):
            for _, field, record in batch.fields:
                if field.shape == shape and (record.stats.nan_count or record.stats.inf_count):
                    return batch
        return None

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            vars(iterator).setdefault("_nanprobe_indices", deque()).append(_numbered(iterator, index))
            return index

        return next_index

    def _reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A new epoch: what the workers had fetched ahead in the last one is thrown away."""

        def reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            vars(iterator).pop("_nanprobe_indices", None)
            vars(iterator).pop("_nanprobe_streamed", None)
            return original(iterator, *args, **kwargs)

        return reset

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch(iterator: Any) -> Any:
            self._started()
            # Nothing of the user's runs here when workers do the reading: only tensors being unpacked.
            elsewhere = without_modes() if isinstance(iterator, _MultiProcessingDataLoaderIter) else nullcontext()
            try:
                with elsewhere:
                    data = original(iterator)
            except StopIteration:
                raise
            except Exception:
                _take_indices(iterator)  # those of the batch that failed
                raise
            indices = _take_indices(iterator)
            with without_modes():
                self._note(data, indices)
            return data

        return next_batch

    def _note(self, data: Any, indices: Any) -> None:
        index, self._count = self._count, self._count + 1
        dataset_indices = _as_indices(indices)
        fields: list[tuple[str, Tensor, ExternalRecord]] = []
        for path, tensor in _float_tensors(data):
            nan, inf, largest = meter.counts(tensor)
            rows, columns = meter.places(tensor, nan or inf, largest)
            dtype = str(tensor.dtype).removeprefix("torch.")
            stats = TensorStats(dtype, tuple(tensor.shape), nan, inf, largest)
            record = ExternalRecord(
                len(fields), ExternalKind.BATCH, path, stats, rows, columns, index,
                dataset_indices if rows and tensor.shape[0] == len(dataset_indices) else (),
            )  # fmt: skip
            fields.append((path, tensor, record))
        self._recent.append(Batch(index, dataset_indices, tuple(fields)))
        self._write(
            BatchRecord(self._timeline.step, index, dataset_indices[: meter.MAX_PLACES], tuple(r for _, _, r in fields))
        )


def _numbered(iterator: Any, index: Any) -> Any:
    """What the sampler gave; for a stream, which has no indices, how many items came before.

    Several workers read a stream each, and nobody knows which item came from which.
    """
    if getattr(iterator, "_dataset_kind", None) != _DatasetKind.Iterable or getattr(iterator, "_num_workers", 2) > 1:
        return index
    before = vars(iterator).get("_nanprobe_streamed", 0)
    count = len(index) if isinstance(index, (list, tuple)) else 1
    vars(iterator)["_nanprobe_streamed"] = before + count
    return list(range(before, before + count))


def _take_indices(iterator: Any) -> Any:
    """What the sampler gave for the batch that has come."""
    handed = vars(iterator).get("_nanprobe_indices")
    indices = handed.popleft() if handed else None
    return indices if getattr(iterator, "_in_order", True) else None  # else nobody knows which batch this is


def _as_indices(indices: Any) -> tuple[int, ...]:
    """Plain numbers from what a sampler gives: integers of Python's, NumPy's or torch's, alone or in a sequence."""
    try:
        if (
            hasattr(indices, "__len__")
            and not isinstance(indices, (str, bytes, dict))
            and getattr(indices, "ndim", True)
        ):
            return tuple(operator.index(i) for i in list(indices[:_MAX_INDICES]))
        return (operator.index(indices),)
    except TypeError:
        return ()  # keys of some other kind, or an IterableDataset that several workers read


def _float_tensors(data: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Float tensors of a batch with their place in it; dicts, sequences and objects with attributes."""
    if isinstance(data, Tensor):
        if data.is_floating_point() and data.layout == torch.strided:
            yield path or "batch", data
    elif depth < 4:
        for name, value in _children(data):
            yield from _float_tensors(value, f"{path}.{name}" if path else name, depth + 1)


def _children(data: Any) -> list[tuple[str, Any]]:
    if isinstance(data, dict) or (hasattr(data, "keys") and hasattr(data, "__getitem__")):
        return [(str(k), data[k]) for k in list(data.keys())[:_MAX_FIELDS]]
    if isinstance(data, (list, tuple)):
        names = getattr(data, "_fields", range(len(data)))
        return [(str(n), v) for n, v in zip(names, data[:_MAX_FIELDS], strict=False)]
    if hasattr(data, "__dict__") and not isinstance(data, type):
        return [(str(k), v) for k, v in list(vars(data).items())[:_MAX_FIELDS]]
    return []

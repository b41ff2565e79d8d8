"""Samples left out of the batches that a DataLoader hands out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data.dataloader import _BaseDataLoaderIter

from nanprobe.interventions import DropRows
from nanprobe.patching import Patches


class RowFilter:
    """Cuts rows out of every batch, and remembers which samples of the data set they were."""

    def __init__(self, drop: DropRows, patches: Patches) -> None:
        self._drop = drop
        self._dropped: dict[int, None] = {}
        self._rows = 0
        patches.wrap(_BaseDataLoaderIter, "_next_index", self._next_index)
        patches.wrap(_BaseDataLoaderIter, "_reset", self._reset)
        patches.wrap(_BaseDataLoaderIter, "__next__", self._next)

    def stop(self) -> None:
        """Nothing of its own: the patches are taken back by whoever holds them."""

    def seen(self) -> dict[str, object]:
        """Data set indices of what was left out, and how many rows that were."""
        return {"dropped_samples": list(self._dropped), "dropped_rows": self._rows}

    def _next_index(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_index(iterator: Any) -> Any:
            index = original(iterator)
            vars(iterator).setdefault("_nanprobe_rows", deque()).append(index)
            return index

        return next_index

    def _reset(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            vars(iterator).pop("_nanprobe_rows", None)
            return original(iterator, *args, **kwargs)

        return reset

    def _next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_batch(iterator: Any) -> Any:
            while True:
                data = original(iterator)
                handed = vars(iterator).get("_nanprobe_rows")
                indices = handed.popleft() if handed else None
                kept = self._kept(data, indices)
                if kept is None:
                    return data
                if kept.numel():
                    return _select(data, kept, _size(data) or 0)

        return next_batch

    def _kept(self, data: Any, indices: Any) -> Tensor | None:
        """Rows to keep; None when all are, or when the batch has no rows."""
        size = _size(data)
        if size is None:
            return None
        bad = torch.zeros(size, dtype=torch.bool)
        named = isinstance(indices, (list, tuple)) and len(indices) == size and None not in indices
        samples = list(indices) if named else None  # an IterableDataset has no indices
        if samples is not None:
            bad |= torch.tensor([int(s) in self._drop.dataset_indices for s in samples])
        for tensor in _tensors(data):
            if tensor.is_floating_point() and tensor.dim() and tensor.shape[0] == size:
                bad |= self._is_bad(tensor.detach().reshape(size, -1)).cpu()
        if not bool(bad.any()):
            return None
        rows = [int(r) for r in bad.nonzero().flatten()]
        self._rows += len(rows)
        if samples is not None:
            self._dropped.update((int(samples[r]), None) for r in rows)
        return (~bad).nonzero().flatten()

    def _is_bad(self, rows: Tensor) -> Tensor:
        bad = torch.zeros(rows.shape[0], dtype=torch.bool, device=rows.device)
        if self._drop.nonfinite:
            bad |= ~torch.isfinite(rows).all(dim=1)
        if self._drop.largest is not None:
            bad |= (rows.abs() > self._drop.largest).any(dim=1)
        return bad


def _size(data: Any) -> int | None:
    """Rows of a batch: the first dimension that all its tensors share; None when they do not."""
    sizes = {t.shape[0] for t in _tensors(data) if t.dim()}
    return sizes.pop() if len(sizes) == 1 else None


def _tensors(data: Any) -> Iterator[Tensor]:
    if isinstance(data, Tensor):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from _tensors(value)
    elif isinstance(data, (list, tuple)):
        for value in data:
            yield from _tensors(value)


def _select(data: Any, rows: Tensor, size: int) -> Any:
    if isinstance(data, Tensor):
        return data[rows.to(data.device)] if data.dim() and data.shape[0] == size else data
    if isinstance(data, dict):
        return type(data)({key: _select(value, rows, size) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_select(value, rows, size) for value in data))
    if isinstance(data, (list, tuple)):
        if len(data) == size and not any(isinstance(v, (Tensor, dict, list, tuple)) for v in data):
            return type(data)(data[int(r)] for r in rows)  # strings and the like, one a row
        return type(data)(_select(value, rows, size) for value in data)
    return data

"""Shadow memory: for every storage the run touches, the same numbers in higher precision.

Keyed by storage, like a memory checker's, so that views and in-place operations need no special case: the shadow of a
tensor is the view with its size, stride and offset into the storage's flat shadow buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

# Sweeping looks at every live entry, so it waits for this many new ones, or an eighth of those alive; or for this
# many bytes of new shadows, or an eighth of those alive.
_SWEEP_AFTER = 64
_SWEEP_BYTES = 1 << 23

# A small view of a big storage (one row of a data set) is converted by itself; converting the whole storage would
# cost more memory than the step.
_MAX_STORAGE_RATIO = 4


@dataclass(slots=True)
class Entry:
    """What is known of one storage."""

    alive: StorageWeakRef  # also keeps the address from being reused while we hold the entry
    item_size: int  # bytes of one real number as first seen
    flat: Tensor | None = None  # the shadow, one dimension; None: the shadow is the storage's own value
    writers: tuple[int, ...] = ()  # operations that wrote it last
    external: int | None = None  # index of the external it was first seen as
    tags: dict[str, object] = field(default_factory=dict)


class ShadowMemory:
    """Entries by storage; buffers of storages that died are dropped."""

    def __init__(self, shadow_dtype: Callable[[torch.dtype], torch.dtype]) -> None:
        self.shadow_dtype = shadow_dtype
        self._entries: dict[int, Entry] = {}
        self._next_sweep = _SWEEP_AFTER
        self._new_bytes = 0
        self._byte_limit = _SWEEP_BYTES

    @property
    def empty(self) -> bool:
        """Nothing is tracked."""
        return not self._entries

    def clear(self) -> None:
        """Forgets everything."""
        self._entries.clear()

    def entry(self, tensor: Tensor) -> Entry:
        """The entry of the tensor's storage, made when there is none."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        entry = self._entries.get(key)
        if entry is None:
            entry = Entry(StorageWeakRef(storage), _item_size(tensor))
            self._entries[key] = entry
            if len(self._entries) > self._next_sweep or self._new_bytes > self._byte_limit:
                self._sweep()
        return entry

    def find(self, tensor: Tensor) -> Entry | None:
        """The entry of the tensor's storage, if there is one."""
        return self._entries.get(tensor.untyped_storage()._cdata)

    def read(self, tensor: Tensor, entry: Entry) -> Tensor:
        """The tensor's shadow, for reading only: it may be the tensor itself."""
        if entry.flat is not None and entry.item_size == _item_size(tensor):
            view = self._view(entry.flat, tensor)
            if view is not None:
                return view
        wanted = self.shadow_dtype(tensor.dtype)
        if wanted == tensor.dtype:
            return tensor.detach()
        if self._worth_keeping(tensor):
            return self.write(tensor, entry)
        return tensor.detach().to(wanted)

    def write(self, tensor: Tensor, entry: Entry) -> Tensor:
        """The tensor's shadow, for writing: a buffer of its own, filled with the storage's value when it is new."""
        if entry.flat is not None and entry.item_size == _item_size(tensor):
            view = self._view(entry.flat, tensor)
            if view is not None:
                return view
        entry.flat = _own_value(tensor, self.shadow_dtype(tensor.dtype))
        self._new_bytes += entry.flat.nbytes
        entry.item_size = _item_size(tensor)
        view = self._view(entry.flat, tensor)
        assert view is not None
        return view

    def adopt(self, tensor: Tensor, entry: Entry, shadow: Tensor) -> None:
        """Makes `shadow`, a fresh result, the shadow of `tensor`, fresh too; no copy when the layouts agree."""
        entry.item_size = _item_size(tensor)
        same_layout = (
            not tensor.is_complex()
            and shadow.stride() == tensor.stride()
            and tensor.storage_offset() == 0
            and shadow.storage_offset() == 0
            and shadow.untyped_storage().nbytes() // shadow.element_size()
            >= tensor.untyped_storage().nbytes() // tensor.element_size()
        )
        if same_layout:
            count = shadow.untyped_storage().nbytes() // shadow.element_size()
            entry.flat = shadow.as_strided((count,), (1,), 0)
            self._new_bytes += entry.flat.nbytes
            return
        entry.flat = _blank(tensor, self.shadow_dtype(tensor.dtype))
        view = self._view(entry.flat, tensor)
        assert view is not None
        view.copy_(shadow)
        self._new_bytes += entry.flat.nbytes

    def forget(self, entry: Entry) -> None:
        """From now on the storage's shadow is its own value."""
        entry.flat = None

    def _worth_keeping(self, tensor: Tensor) -> bool:
        elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        return elements <= _MAX_STORAGE_RATIO * tensor.numel()

    def _view(self, flat: Tensor, tensor: Tensor) -> Tensor | None:
        if tensor.is_complex():
            stride = [2 * s for s in tensor.stride()] + [1]
            size = [*tensor.shape, 2]
            offset = 2 * int(tensor.storage_offset())
            if not _fits(flat, size, stride, offset):
                return None
            view = torch.view_as_complex(flat.as_strided(size, stride, offset))
            return view.conj() if tensor.is_conj() else view
        if not _fits(flat, tensor.shape, tensor.stride(), int(tensor.storage_offset())):
            return None
        view = flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return torch._neg_view(view) if tensor.is_neg() else view

    def _sweep(self) -> None:
        dead = [key for key, entry in self._entries.items() if entry.alive.expired()]
        for key in dead:
            del self._entries[key]
        self._next_sweep = len(self._entries) + max(_SWEEP_AFTER, len(self._entries) // 8)
        alive = sum(entry.flat.nbytes for entry in self._entries.values() if entry.flat is not None)
        self._new_bytes = 0
        self._byte_limit = max(_SWEEP_BYTES, alive // 8)


def _fits(flat: Tensor, size: Iterable[int], stride: Iterable[int], offset: int) -> bool:
    last = offset
    for n, s in zip(size, stride, strict=True):
        if n == 0:
            return True
        last += (n - 1) * s
    return last < flat.numel()


def _item_size(tensor: Tensor) -> int:
    return tensor.element_size() // 2 if tensor.is_complex() else tensor.element_size()


def _real_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype.to_real() if dtype.is_complex else dtype


def _blank(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """An uninitialised flat buffer as long as the tensor's storage, in real numbers."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size() * (2 if tensor.is_complex() else 1)
    return torch.empty(count, dtype=_real_dtype(dtype), device=tensor.device)


def _own_value(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The storage's value in the shadow's format, flat."""
    base = tensor.detach()
    base = torch._neg_view(base) if base.is_neg() else base
    if base.is_complex():
        base = torch.view_as_real(base.conj() if base.is_conj() else base)
    count = tensor.untyped_storage().nbytes() // base.element_size()
    whole = base.as_strided((count,), (1,), 0)
    return whole.to(_real_dtype(dtype), copy=True)

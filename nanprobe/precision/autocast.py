"""CUDA's autocast on a CPU: its cast lists, its FP16 rounding, at about the price of FP32."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.library import Library, fallthrough_kernel

from nanprobe.precision.cast_lists import cpu_only_ops, cuda_entries
from nanprobe.precision.kernels import build_kernel
from nanprobe.precision.weight_casts import WeightCasts


@dataclass
class _Registration:
    """The one set of kernels of this process, and how many contexts need it."""

    users: int = 0
    library: Library | None = None
    casts: WeightCasts = field(default_factory=WeightCasts)
    lock: threading.Lock = field(default_factory=threading.Lock)


_REGISTRATION = _Registration()


@contextmanager
def cuda_autocast_on_cpu() -> Iterator[None]:
    """While active, `torch.autocast("cpu", dtype)` casts, rounds and refuses as `torch.autocast("cuda", dtype)` does.

    Any thread, any number of nested uses; the CPU's own autocast is back once the last is left. Matrix products,
    convolutions, attention and recurrent layers take FP16, accumulate in FP32 and give FP16.
    """
    _acquire()
    try:
        yield
    finally:
        _release()


def _acquire() -> None:
    with _REGISTRATION.lock:
        _REGISTRATION.users += 1
        if _REGISTRATION.users == 1:
            _REGISTRATION.library = _register(_REGISTRATION.casts)
            _hold_fast_attention_off()
            _clear_with_autocast(_REGISTRATION.casts)


def _release() -> None:
    with _REGISTRATION.lock:
        _REGISTRATION.users -= 1
        if _REGISTRATION.users == 0 and _REGISTRATION.library is not None:
            _REGISTRATION.library._destroy()
            _REGISTRATION.library = None
            _REGISTRATION.casts.clear()
            _restore()


def _register(casts: WeightCasts) -> Library:
    """Put CUDA's kernels in the place of the CPU's."""
    unused = cpu_only_ops()  # asked first: afterwards the dispatcher lists our own kernels too
    library = Library("aten", "IMPL", "AutocastCPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they are overridden is the purpose
        for entry in cuda_entries():
            library.impl(entry.op, build_kernel(entry, casts))
        for op in unused:
            library.impl(op, fallthrough_kernel)
    return library


_ORIGINALS: dict[str, object] = {}


def _clear_with_autocast(casts: WeightCasts) -> None:
    """Empty `casts` whenever PyTorch empties its own cache: when the outermost autocast context is left."""
    clear_pytorch = torch.clear_autocast_cache

    def clear_both() -> None:
        casts.clear()
        clear_pytorch()

    _ORIGINALS["clear_autocast_cache"] = clear_pytorch
    torch.clear_autocast_cache = clear_both


def _hold_fast_attention_off() -> None:
    """Switch off the fused inference path of TransformerEncoder: CUDA's autocast does not take it, a CPU's does."""
    _ORIGINALS["fast_attention"] = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)


def _restore() -> None:
    """Take back what was changed outside the dispatcher."""
    torch.clear_autocast_cache = _ORIGINALS.pop("clear_autocast_cache")  # type: ignore[assignment]
    torch.backends.mha.set_fastpath_enabled(bool(_ORIGINALS.pop("fast_attention")))

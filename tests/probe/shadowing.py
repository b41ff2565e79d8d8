"""Running a piece of code under shadow execution, without a session around it."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from nanprobe.probe.recorder import Recorder
from nanprobe.probe.shadow import ShadowMode
from nanprobe.probe.sources import SourceFinder
from nanprobe.records import ExternalKind, OpRecord, Phase


class PlainContext:
    """A moment with no module and no names."""

    def phase(self) -> Phase:
        return Phase.FORWARD

    def module_name(self) -> str | None:
        return None

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor

    def identify(self, tensor: Tensor) -> tuple[ExternalKind, str | None, int | None, tuple[int, ...]]:
        return ExternalKind.CONSTANT, None, None, ()

    def grid(self, tensor: Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def is_own_code(self, frame: FrameType | None) -> bool:
        return False


def shadow_mode(low_precision: bool = False) -> ShadowMode:
    return ShadowMode(Recorder(PlainContext(), SourceFinder(), low_precision, True), widen_fp32=not low_precision)


def shadow(mode: ShadowMode, tensor: Tensor) -> Tensor:
    """The re-check's value of a tensor; its own where it is not tracked."""
    entry = mode.memory.find(tensor)
    if entry is None:
        return tensor.detach().to(mode.shadow_dtype(tensor.dtype))
    return mode.memory.read(tensor, entry)


def records(mode: ShadowMode) -> tuple[OpRecord, ...]:
    return mode.recorder.ops()


def wide(value: Any, mode: ShadowMode) -> Any:
    """An own copy of every float tensor in the re-check's format; other tensors as own copies."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        if copy.is_floating_point() or copy.is_complex():
            copy = copy.to(mode.shadow_dtype(value.dtype))
        return copy.requires_grad_(value.requires_grad)
    return value


def check(code: Callable[..., Any], *inputs: Any, low_precision: bool = False) -> ShadowMode:
    """Runs `code` plainly, under shadow execution, and plainly in the wider format.

    Under shadow execution its results must be bit-identical to the plain ones, and their shadows to the wide ones.
    """
    mode = shadow_mode(low_precision)
    own = [i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i for i in inputs]
    reference = _flat(code(*[wide(i, mode) for i in inputs]))
    plain = _flat(code(*own))
    watched = [i.detach().clone().requires_grad_(i.requires_grad) if isinstance(i, Tensor) else i for i in inputs]
    with mode:
        real = _flat(code(*watched))
    assert mode.stopped is None
    assert len(real) == len(plain) == len(reference) > 0
    for r, p, w in zip(real, plain, reference, strict=True):
        assert_same(r, p)
        if r.is_floating_point() or r.is_complex():
            assert_same(shadow(mode, r), w)
        else:
            assert shadow(mode, r) is not None
    return mode


def assert_same(a: Tensor, b: Tensor) -> None:
    """Same format, same shape, same numbers to the last bit, NaN equal to NaN."""
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [t for item in value for t in _flat(item)]

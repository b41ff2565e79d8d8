"""CUDA's autocast lists: which operator is cast how, and where the emulation departs from them, with the reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

import torch

_LISTS = (
    "autocast_ops_torch213.json"  # from a CPU-only build: ATen/autocast_mode.h and the dispatcher know CUDA's lists
)


class Policy(str, Enum):
    """What autocast does with an operator's arguments. Source: ATen/autocast_mode.h, CastPolicy."""

    LOWER_PRECISION = "lower_precision"  # inputs to FP16, FP32 accumulation, FP16 result
    FP32 = "fp32"  # inputs to FP32
    FP32_SET_OPT_DTYPE = "fp32_set_opt_dtype"  # ask for an FP32 result, unless the caller asked for a dtype
    FP32_APPEND_DTYPE = "fp32_append_dtype"  # call the overload that takes a dtype, with FP32
    PROMOTE = "promote"  # inputs to the widest dtype among them
    BANNED = "banned"  # an error


class Variant(str, Enum):
    """Where the emulation of an operator departs from its policy's plain kernel."""

    INNER_ROUNDING = "inner_rounding"
    UNCACHED = "uncached"
    NATIVE_HALF = "native_half"


@dataclass(frozen=True, slots=True)
class Entry:
    """One operator of CUDA's lists."""

    op: str  # "linear", "conv_transpose2d.input"
    policy: Policy
    variant: Variant | None = None
    reason: str = ""  # why it has a variant, or why it is listed though CUDA's lists do not have it


_CHAIN = "a chain of products: on CUDA every intermediate product is FP16 and can overflow"
_CUDNN_RNN = "CUDA casts _cudnn_rnn, below this; cuDNN takes FP16, works in FP32; weights are cast anew each call"
_FUSED_ATTENTION = "CUDA never gets here under autocast: its slow path gives FP16 from the same FP16 inputs"
_ADDS_IN_PLACE = "on CUDA each addition into an FP16 element is rounded, as PyTorch's own FP16 kernel does"

EXCEPTIONS = (
    Entry("einsum", Policy.LOWER_PRECISION, Variant.INNER_ROUNDING, _CHAIN),
    Entry("chain_matmul", Policy.LOWER_PRECISION, Variant.INNER_ROUNDING, _CHAIN),
    Entry("linalg_multi_dot", Policy.LOWER_PRECISION, Variant.INNER_ROUNDING, _CHAIN),
    Entry("lstm.input", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("lstm.data", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("gru.input", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("gru.data", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("rnn_tanh.input", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("rnn_tanh.data", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("rnn_relu.input", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("rnn_relu.data", Policy.LOWER_PRECISION, Variant.UNCACHED, _CUDNN_RNN),
    Entry("_native_multi_head_attention", Policy.LOWER_PRECISION, None, _FUSED_ATTENTION),
    Entry("index_put", Policy.PROMOTE, Variant.NATIVE_HALF, _ADDS_IN_PLACE),
    Entry("scatter_add", Policy.PROMOTE, Variant.NATIVE_HALF, _ADDS_IN_PLACE),
)


def find_op(name: str) -> torch._ops.OpOverload | None:
    """The aten operator called `name` ("sum.dim_IntList"); None where this PyTorch has none."""
    packet_name, _, overload = name.partition(".")
    try:
        packet = getattr(torch.ops.aten, packet_name)
        return getattr(packet, overload or "default")  # type: ignore[no-any-return]
    except AttributeError:
        return None


def _registered(dispatch_key: str) -> frozenset[str]:
    """The aten operators that this PyTorch has an autocast rule for; CUDA's are there in builds without CUDA too."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key(dispatch_key)
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


@cache
def cuda_entries() -> tuple[Entry, ...]:
    """CUDA's lists for the running PyTorch, exceptions included; what it has no rule for or has not got is left out."""
    text = resources.files("nanprobe.precision").joinpath("data", _LISTS).read_text(encoding="utf-8")
    registered = _registered("AutocastCUDA")
    listed = {
        op: Entry(op, Policy(policy))
        for policy, ops in json.loads(text)["cuda"].items()
        for op in ops
        if op in registered
    }
    merged = listed | {entry.op: entry for entry in EXCEPTIONS}
    return tuple(entry for entry in merged.values() if find_op(entry.op) is not None)


@cache
def cpu_only_ops() -> tuple[str, ...]:
    """Operators that this PyTorch's own CPU autocast has a rule for, and CUDA's has not."""
    return tuple(sorted(_registered("AutocastCPU") - {entry.op for entry in cuda_entries()}))


def unlisted_cuda_ops() -> tuple[str, ...]:
    """Operators that this PyTorch's CUDA autocast has a rule for and our lists do not: none, or the lists are old."""
    return tuple(sorted(_registered("AutocastCUDA") - {entry.op for entry in cuda_entries()}))

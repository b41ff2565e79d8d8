"""Rewriting what the script asks for: low-precision dtypes in the FP32 stage, CUDA devices where there is none.

Done by replacing the functions that take such requests (conversions and factories), not by a function mode: a mode
would cost every call of every operation, and a script asks for a dtype or device rarely.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from nanprobe.patching import Patches

LOW = (torch.float16, torch.bfloat16)
_MAX_NOTED = 4096  # then those that have died are forgotten

_CONVERSIONS = ("to", "type", "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor")
_FACTORIES = (
    "tensor", "as_tensor", "asarray", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm",
    "arange", "linspace", "logspace", "eye", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like",
    "randn_like", "randint_like", "empty_strided", "scalar_tensor", "from_numpy", "frombuffer", "normal",
    "hann_window",
    "hamming_window", "blackman_window", "bartlett_window", "kaiser_window", "tril_indices", "triu_indices", "complex",
    "sparse_coo_tensor",
)  # fmt: skip

_LOW_TYPES = {"torch.HalfTensor": torch.float16, "torch.BFloat16Tensor": torch.bfloat16}

# Calls of torch.cuda that fail where there is no driver, and what they answer instead.
_CUDA_ANSWERS: dict[str, Callable[..., Any]] = {
    "set_device": lambda *a, **k: None,
    "synchronize": lambda *a, **k: None,
    "current_device": lambda *a, **k: 0,
    "get_device_name": lambda *a, **k: "cpu (CUDA is mapped to it)",
    "reset_peak_memory_stats": lambda *a, **k: None,
    "reset_max_memory_allocated": lambda *a, **k: None,
    "ipc_collect": lambda *a, **k: None,
}


class Requests:
    """The rewriting in force for a stage, and what was asked for.

    Args:
        keep_low: leave requests for FP16 and bf16 alone.
        map_cuda: give the CPU to whoever asks for CUDA.
    """

    def __init__(self, keep_low: bool, map_cuda: bool) -> None:
        self._keep_low = keep_low
        self._map_cuda = map_cuda
        self.asked_cuda = False  # the script asked whether CUDA is there, or for it
        self.mapped_cuda = False
        self.asked_low: torch.dtype | None = None  # the first low-precision format the script asked for
        self._low: dict[int, tuple[StorageWeakRef, torch.dtype]] = {}
        self._noting = True

    def install(self, patches: Patches) -> None:
        """Puts the rewriting in."""
        for name in _CONVERSIONS:
            patches.wrap(Tensor, name, self._rewriting)
        for name in _FACTORIES:
            patches.wrap(torch, name, self._rewriting)
        if not self._keep_low:
            patches.wrap(Tensor, "half", lambda original: self._converting(torch.float16))
            patches.wrap(Tensor, "bfloat16", lambda original: self._converting(torch.bfloat16))
            patches.wrap(Tensor, "float", self._widening)
            patches.wrap(torch, "set_default_dtype", self._default_dtype)
        patches.wrap(torch.cuda, "is_available", self._asking)
        if self._map_cuda:
            self._install_cuda(patches)

    def stop_noting(self) -> None:
        """Forgets which tensors were meant to be low precision; the weights are known by now."""
        self._noting = False
        self._low.clear()

    def low_dtype(self, tensor: Tensor) -> str | None:
        """The low-precision format the script wanted this tensor in, if any."""
        if tensor.dtype in LOW:
            return str(tensor.dtype).removeprefix("torch.")
        noted = self._low.get(tensor.untyped_storage()._cdata)
        return None if noted is None or noted[0].expired() else str(noted[1]).removeprefix("torch.")

    def device_type(self, device_type: str) -> str:
        """The device type the script gets for the one it asked for."""
        if self._map_cuda and device_type == "cuda":
            self.asked_cuda = self.mapped_cuda = True
            return "cpu"
        return device_type

    def _install_cuda(self, patches: Patches) -> None:
        patches.wrap(Tensor, "cuda", lambda original: lambda tensor, *a, **k: self._to_cpu(tensor))
        patches.wrap(Tensor, "pin_memory", lambda original: lambda tensor, *a, **k: tensor)
        patches.wrap(torch, "set_default_device", self._rewriting)
        patches.wrap(torch.utils._device.DeviceContext, "__init__", self._rewriting)
        for name, answer in _CUDA_ANSWERS.items():
            patches.wrap(torch.cuda, name, functools.partial(_answering, answer))
        for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
            patches.wrap(torch, name, self._for_device_type)

    def _for_device_type(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The device type alone is rewritten: autocast sets its own dtype with these, and PyTorch asks for itself."""

        def mapped(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("device_type") == "cuda":
                kwargs["device_type"] = "cpu"
            return original(*("cpu" if a == "cuda" else a for a in args), **kwargs)

        return mapped

    def _to_cpu(self, tensor: Tensor) -> Tensor:
        self.asked_cuda = self.mapped_cuda = True
        return tensor

    def _asking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def is_available() -> bool:
            self.asked_cuda = True
            return bool(original())

        return is_available

    def _default_dtype(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def set_default_dtype(dtype: torch.dtype) -> None:
            original(self._rewrite(dtype, []))

        return set_default_dtype

    def _converting(self, dtype: torch.dtype) -> Callable[..., Any]:
        def convert(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            self.asked_low = self.asked_low or dtype
            result = self._own(tensor, torch.Tensor.to(tensor, torch.float32, *args, **kwargs))
            self._note(result, dtype)
            return result

        return convert

    def _widening(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def widen(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if tensor.dtype == torch.float32 and self.low_dtype(tensor) is not None:
                return torch.Tensor.clone(tensor, *args, **kwargs)
            result: Tensor = original(tensor, *args, **kwargs)
            return result

        return widen

    def _own(self, tensor: object, result: Tensor) -> Tensor:
        """The result of a conversion that would have made a copy, as a copy.

        An FP32 tensor that is asked for in FP16 would else be handed back itself, and count as meant to be FP16.
        """
        return result.clone() if result is tensor and self.low_dtype(result) is None else result

    def _rewriting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def rewritten(*args: Any, **kwargs: Any) -> Any:
            if _asked_by_nanprobe():
                return original(*args, **kwargs)
            low: list[torch.dtype] = []
            args = tuple(self._rewrite(a, low) for a in args)
            for key in ("dtype", "device", "device_type"):
                if kwargs.get(key) is not None:
                    kwargs[key] = self._rewrite(kwargs[key], low)
            result = original(*args, **kwargs)
            if not isinstance(result, Tensor):
                return result
            if not self._keep_low and result.dtype in LOW:  # made from NumPy's float16, or like a tensor that was
                low.append(result.dtype)
                result = result.float()
            if low:
                if args:
                    result = self._own(args[0], result)
                self._note(result, low[0])
            return result

        return rewritten

    def _rewrite(self, value: Any, low: list[torch.dtype]) -> Any:
        if isinstance(value, torch.dtype):
            if value in LOW and not self._keep_low:
                self.asked_low = self.asked_low or value
                low.append(value)
                return torch.float32
        elif isinstance(value, torch.device):
            if value.type == "cuda" and self._map_cuda:
                self.asked_cuda = self.mapped_cuda = True
                return torch.device("cpu")
        elif isinstance(value, str):
            if self._map_cuda and (value == "cuda" or value.startswith("cuda:")):
                self.asked_cuda = self.mapped_cuda = True
                return "cpu"
            if self._map_cuda and value.startswith("torch.cuda."):
                self.asked_cuda = self.mapped_cuda = True
                value = value.replace("torch.cuda.", "torch.")
            if not self._keep_low and value in _LOW_TYPES:
                low.append(_LOW_TYPES[value])
                return "torch.FloatTensor"
        return value

    def _note(self, tensor: Tensor, dtype: torch.dtype) -> None:
        if self._noting and tensor.layout == torch.strided:
            if len(self._low) > _MAX_NOTED:
                self._low = {key: noted for key, noted in self._low.items() if not noted[0].expired()}
            storage = tensor.untyped_storage()
            self._low[storage._cdata] = (StorageWeakRef(storage), dtype)


def _answering(answer: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer(*args, **kwargs)


def _asked_by_nanprobe() -> bool:
    """Whether the patched function was called by nanprobe itself: emulation and rounding need the real FP16."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("nanprobe.")

"""Every entry of PyTorch's own CUDA autocast test lists holds under `cuda_autocast_on_cpu`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.autocast_test_lists import AutocastTestLists

from nanprobe.precision import cuda_autocast_on_cpu

torch.manual_seed(0)
LISTS = AutocastTestLists(torch.device("cpu"))

# (list, module to find the operator in, dtype the inputs are cast to; None: the entry names the result's dtype)
SUITES: tuple[tuple[str, Any, torch.dtype | None], ...] = (
    ("torch_fp16", torch, torch.float16),
    ("torch_fp32", torch, torch.float32),
    ("torch_need_autocast_promote", torch, torch.float32),
    ("torch_expect_builtin_promote", torch, None),
    ("nn_fp16", torch._C._nn, torch.float16),
    ("nn_fp32", torch._C._nn, torch.float32),
    ("linalg_fp16", torch._C._linalg, torch.float16),
    ("methods_fp16", None, torch.float16),
    ("methods_fp32", None, torch.float32),
    ("methods_expect_builtin_promote", None, None),
)

NOT_ON_A_CPU = {
    "cudnn_convolution": "cuDNN's own operator: it has no CPU kernel, and nothing but CUDA code calls it",
    "cudnn_convolution_transpose": "cuDNN's own operator: it has no CPU kernel, and nothing but CUDA code calls it",
}

PYTHON_2_ONLY = {"__div__": "Tensor has no such method any more; PyTorch's own test runs it through torch.div"}


def _cases() -> Iterable[Any]:
    for list_name, module, run_as in SUITES:
        for index, entry in enumerate(getattr(LISTS, list_name)):
            marks = [pytest.mark.skip(reason=NOT_ON_A_CPU[entry[0]])] if entry[0] in NOT_ON_A_CPU else []
            yield pytest.param(entry, module, run_as, id=f"{list_name}-{index}-{entry[0]}", marks=marks)


def cast(value: Any, dtype: torch.dtype) -> Any:
    """`value` with its floating tensors in `dtype`."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list | tuple):
        return type(value)(cast(item, dtype) for item in value)
    return value


def tensors_of(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, Tensor):
        return [result]
    return [tensor for item in result for tensor in tensors_of(item)] if isinstance(result, list | tuple) else []


def variants(name: str, module: Any) -> list[Any]:
    """The function and the method of that name, where they exist."""
    candidates = [getattr(owner, name, None) for owner in (module, Tensor) if owner is not None]
    return [candidate for candidate in candidates if candidate is not None]


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross without")
@pytest.mark.parametrize(("entry", "module", "run_as"), list(_cases()))
def test_entry(entry: tuple[Any, ...], module: Any, run_as: torch.dtype | None) -> None:
    name, args = entry[0], entry[1]
    kwargs = entry[2] if len(entry) == 3 and isinstance(entry[2], dict) else {}
    out_dtype = entry[2] if run_as is None else run_as
    if name == "einsum":  # PyTorch's list has matrices for a four-dimensional equation, and skips it
        args = ("ij,jk->ik", *entry[2])
        kwargs = {}
    functions = variants(name, module)
    assert functions or name in PYTHON_2_ONLY
    for function in functions:
        with cuda_autocast_on_cpu(), torch.autocast("cpu", torch.float16):
            result = function(*args, **kwargs)
        # the reference: inputs in the list's dtype, computed in FP32 (PyTorch's FP16 on a CPU rounds partial sums)
        control = function(*cast(cast(args, run_as or torch.float32), torch.float32), **kwargs)
        assert type(result) is type(control)
        tolerance = 1e-2 if run_as is torch.float16 else 1e-5
        for ours, theirs in zip(tensors_of(result), tensors_of(control), strict=True):
            assert ours.dtype is out_dtype
            torch.testing.assert_close(
                ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, check_dtype=run_as is None
            )


@pytest.mark.parametrize(("name", "args", "module"), LISTS.banned)
def test_banned_entry(name: str, args: tuple[Tensor, ...], module: Any) -> None:
    with (
        cuda_autocast_on_cpu(),
        torch.autocast("cpu", torch.float16),
        pytest.raises(RuntimeError, match=r"binary_cross_entropy is unsafe under autocast.*with_logits"),
    ):
        getattr(module, name)(*args)
    getattr(module, name)(*args)  # and outside autocast it works


def test_all_of_pytorchs_lists_are_run() -> None:
    lists = {name for name, value in vars(LISTS).items() if isinstance(value, list)}
    assert lists == {name for name, _, _ in SUITES} | {"banned"}
    assert sum(1 for _ in _cases()) + len(LISTS.banned) >= 121

"""Output dtypes of every operation in PyTorch's own autocast test lists: native on one device, emulated on another.

`python -m benchmarks.autocast_lists cuda` prints one JSON list. A process of its own, because importing PyTorch's test
code freezes the switches of its backends.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from nanprobe.precision import cuda_autocast_on_cpu

# Where each list's operations live; None is the tensor's own method. The "expect_builtin_promote" lists carry the
# expected dtype as a third field, which is not needed here: the native run is the expectation.
OWNERS: dict[str, Any] = {
    "torch_fp16": torch,
    "torch_fp32": torch,
    "torch_need_autocast_promote": torch,
    "torch_expect_builtin_promote": torch,
    "nn_fp16": torch._C._nn,
    "nn_fp32": torch._C._nn,
    "linalg_fp16": torch._C._linalg,
    "methods_fp16": None,
    "methods_fp32": None,
    "methods_expect_builtin_promote": None,
}

NO_CPU_KERNEL = ("/cudnn_convolution", "/cudnn_convolution_transpose")  # cuDNN's own operators

Operation = Callable[[], Any]


def compare(native: str, emulated: str = "cpu") -> Iterator[dict[str, object]]:
    """One row an entry: what autocast on `native` gives and what its emulation on `emulated` gives."""
    operations = {key: list(entries(key)) for key in (native, emulated)}
    for (name, ours), (other_name, theirs) in zip(operations[emulated], operations[native], strict=True):
        assert name == other_name
        expected = outcome(theirs, native, False)
        found = outcome(ours, emulated, True)
        yield {
            "op": name,
            "native": expected,
            "emulated": found,
            "same": expected == found,
            "comparable": not name.endswith(NO_CPU_KERNEL),
        }


def entries(device: str) -> Iterator[tuple[str, Operation]]:
    """Name and call of every entry, with arguments on `device`."""
    torch.manual_seed(0)
    lists = _test_lists()(torch.device(device))
    for list_name, owner in OWNERS.items():
        for number, entry in enumerate(getattr(lists, list_name)):
            op, args, kwargs = entry[0], entry[1], {}
            if op == "einsum":  # the list has matrices for a four-dimensional equation, and PyTorch's tests skip it
                args, entry = ("ij,jk->ik", *entry[2]), entry[:2]
            for extra in entry[2:]:
                kwargs = extra if isinstance(extra, dict) else kwargs
            yield f"{list_name}/{number}/{op}", _operation(owner, op, args, kwargs)


def outcome(operation: Operation, device: str, emulate: bool) -> str:
    """Dtypes of the results as one line; or the kind of error."""
    with ExitStack() as stack:
        if emulate:
            stack.enter_context(cuda_autocast_on_cpu())
        stack.enter_context(torch.autocast(device, torch.float16))
        try:
            return describe(operation())
        except Exception as error:
            return type(error).__name__


def describe(result: Any) -> str:
    """Dtypes of the tensors in a result, `?` where a value is no tensor."""
    if isinstance(result, torch.Tensor):
        return str(result.dtype).removeprefix("torch.")
    if isinstance(result, (tuple, list)):
        return ", ".join(describe(item) for item in result)
    return "?"


def _operation(owner: Any, op: str, args: Any, kwargs: dict[str, Any]) -> Operation:
    if owner is None:
        return lambda: getattr(args[0], op)(*args[1:], **kwargs)
    # A few entries of the torch lists are methods only.
    function = getattr(owner, op, None) or getattr(torch.Tensor, op)
    return lambda: function(*args, **kwargs)


def _test_lists() -> Any:
    try:
        import expecttest  # noqa: F401
    except ImportError:  # the lists need nothing of it, the module they live in imports it
        stub = types.ModuleType("expecttest")
        stub.TestCase = object  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stub
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    return AutocastTestLists


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        print(json.dumps(list(compare(sys.argv[1]))))

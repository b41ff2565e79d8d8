"""Shadow execution: every operation of a deep step runs as the stage runs it, and once more in higher precision.

FP32 beside FP16, FP64 beside FP32. Both values are then known for every operation, forward, loss, backward and
optimizer alike, with no closure of the user's needed. The real operations are unchanged, so nothing shifts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode

from nanprobe.probe import attention
from nanprobe.probe.memory import Entry, ShadowMemory
from nanprobe.probe.operators import OperatorInfo, operator_info
from nanprobe.probe.recorder import OpDraft, Recorder

aten = torch.ops.aten

# A recording this long is no longer a training step but a data set being prepared; stop before memory runs out.
MAX_OPERATIONS = 200_000

_LOW = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WIDE = {**_LOW, torch.float32: torch.float64, torch.complex64: torch.complex128}


OUT_OF_MEMORY = "memory ran out while re-checking; the verdict rests on the gradients alone"

_NONE = object()  # there is no re-check: a foreach operator's own result is None


@dataclass(slots=True)
class _Call:
    """One operation on its way through the mode."""

    func: OpOverload
    info: OperatorInfo
    draft: OpDraft
    written: list[Tensor]
    exact: bool = False  # the re-check is the real result
    entries: dict[int, Entry] = field(default_factory=dict)  # of the float inputs, by `id`
    arguments: tuple[Any, Any] | None = None  # of the re-check
    written_shadows: dict[int, Tensor] = field(default_factory=dict)
    befores: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)


class ShadowMode(TorchDispatchMode):
    """Runs each operation twice and tells the recorder what it saw.

    Args:
        recorder: gets one `OpDraft` per operation.
        widen_fp32: FP64 beside FP32 (the `fp32` stage); else FP32 beside FP16 and FP32.
        pause: entered around the re-check, so that a rounding mode below does not touch it.
        rewriting: told of an FP16 or bf16 tensor from outside, and its external, before it is first written in place.
    """

    def __init__(
        self,
        recorder: Recorder,
        widen_fp32: bool,
        pause: Callable[[], AbstractContextManager[Any]] = nullcontext,
        rewriting: Callable[[Tensor, int], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder
        self._rewriting = rewriting
        self._dtypes = _WIDE if widen_fp32 else _LOW
        self.memory = ShadowMemory(self.shadow_dtype)
        self._pause = pause
        self._pid = os.getpid()
        self.stopped: str | None = None  # why recording ended early

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper PyTorch would put around the handler imports the compiler and costs every operation.
        return False

    def shadow_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The format of the re-check for a tensor of this format."""
        return self._dtypes.get(dtype, dtype)

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # DataLoader workers inherit the mode when they fork; what they do is not part of the step.
        if self.stopped is not None or os.getpid() != self._pid:
            return func(*args, **kwargs)
        if any(t is not Tensor and t is not Parameter for t in types):
            return NotImplemented  # a tensor that handles its operations itself: what it does inside is looked at
        info = operator_info(func)
        if info.is_view:
            self.recorder.view()
            return func(*args, **kwargs)
        call = self._prepare(func, info, args, kwargs)
        try:
            out = func(*args, **kwargs)
        except BaseException as error:
            if call is not None:
                self.recorder.drop(call.draft)
            if not is_out_of_memory(error) or self.memory.empty:
                raise
            self.stop(OUT_OF_MEMORY)  # without the shadows there may be room
            return func(*args, **kwargs)
        if call is not None:
            self._complete(call, out)
        return out

    def _prepare(self, func: OpOverload, info: OperatorInfo, args: Any, kwargs: Any) -> _Call | None:
        """What must be known before the real operation runs; None when there is nothing to re-check."""
        draft = None
        try:
            tensors, sparse = _dense(_tensors(args, kwargs))
            written = _written(info, args, kwargs)
            if written and not any(_is_float(t) for t in written):
                self._lose_track(written)
                return None
            draft = self.recorder.begin(info, args, kwargs)
            call = _Call(func, info, draft, written)
            self._enter(call, tensors)
            call.exact = (
                info.packet in _EXACT or (info.random and info.packet not in _SHADOWS) or _blanks(info, written)
            )
            # Before the real operation: it overwrites what the re-check has yet to read.
            if not call.exact:
                self._shadow_arguments(call, args, kwargs, sparse)
            self._remember_inputs(call)
            return call
        except Exception as error:
            self.give_up(error)
            if draft is not None:
                self.recorder.drop(draft)
            return None

    def _complete(self, call: _Call, out: Any) -> None:
        """The real operation has run: runs the re-check and keeps what both made."""
        try:
            results, _ = _dense(_results(out))
            shadow_out = _NONE
            if call.arguments is not None and (call.written or any(_is_float(t) for t in results)):
                shadow_out = self._recheck(call, out)
            self._leave(call, results, shadow_out)
        except Exception as error:
            self.give_up(error)

    def _lose_track(self, written: list[Tensor]) -> None:
        """Integers were written; floats that share their storage have new values."""
        for tensor in written:
            entry = self.memory.find(tensor) if tensor.layout == torch.strided else None
            if entry is not None:
                self.memory.forget(entry)

    def _enter(self, call: _Call, tensors: list[Tensor]) -> None:
        """Finds the entries of the float inputs; notes on the draft who wrote them."""
        overwritten: set[int] = set()
        if call.info.packet in _OVERWRITES or call.info.random:
            overwritten = {id(t) for t in call.written}
        entries, inputs = call.entries, call.draft.inputs
        for tensor in tensors:
            if not _is_float(tensor) or id(tensor) in entries:
                continue
            entry = entries[id(tensor)] = self.memory.entry(tensor)
            if id(tensor) in overwritten:
                # Filling a part of it leaves the rest what it was.
                if not entry.writers and entry.external is None and not _covers_storage(tensor):
                    entry.external = self._external(tensor)
                continue
            if not entry.writers and entry.external is None:
                entry.external = self._external(tensor)
            inputs.append((entry.writers, entry.external, tensor))

    def _shadow_arguments(self, call: _Call, args: Any, kwargs: Any, sparse: dict[int, Tensor]) -> None:
        entries, memory = call.entries, self.memory
        shadows = call.written_shadows
        written = {id(t) for t in call.written}
        # Written ones first: an input that shares their storage must see the same buffer.
        for tensor in call.written:
            if id(tensor) in entries:
                entry = entries[id(tensor)]
                first, is_low = entry.external if not entry.writers else None, tensor.dtype in _LOW
                if self._rewriting is not None and is_low and first is not None:
                    self._rewriting(tensor, first)
                shadows[id(tensor)] = memory.write(tensor, entry)
        read: dict[int, Tensor] = {}

        def convert(value: Any) -> Any:
            if isinstance(value, Tensor):
                key = id(value)
                found = shadows.get(key)
                if found is not None:
                    return found
                found = read.get(key)
                if found is None:
                    entry = entries.get(key)
                    if entry is not None:
                        found = memory.read(value, entry)
                    elif key in sparse:
                        found = self._sparse_shadow(value, sparse[key], entries)
                    elif key in written:
                        found = value.clone()  # integers written beside floats: the real run's hold
                    else:
                        return value
                    read[key] = found
                return found
            if isinstance(value, torch.dtype):
                return self.shadow_dtype(value)
            if isinstance(value, (list, tuple)):
                return type(value)(convert(v) for v in value)
            return value

        call.arguments = tuple(convert(a) for a in args), {k: convert(v) for k, v in kwargs.items()}

    def _sparse_shadow(self, tensor: Tensor, values: Tensor, entries: dict[int, Entry]) -> Tensor:
        shadow = self.memory.read(values, entries[id(values)])
        return torch.sparse_coo_tensor(
            tensor._indices(), shadow, tensor.shape, check_invariants=False, is_coalesced=tensor.is_coalesced()
        )

    def _remember_inputs(self, call: _Call) -> None:
        """The inputs as they are before the operation, for a look at what a bad result was made from."""
        writes = {id(t) for t in call.written}
        for _, _, tensor in call.draft.inputs:
            if tensor is None:
                continue
            # An argument that is overwritten in place is kept only while it is small.
            if id(tensor) not in writes:
                call.befores.append((tensor, None))
            elif tensor.numel() <= 4096:
                shadow = self.memory.read(tensor, call.entries[id(tensor)])
                call.befores.append((tensor.detach().clone(), shadow.clone()))

    def _recheck(self, call: _Call, out: Any) -> Any:
        """Results of the re-check in the shape of `out`; `_NONE` when there is no such kernel."""
        if any(t.layout != torch.strided for t in call.written):
            return _NONE  # running it again would write the real values twice
        assert call.arguments is not None
        args, kwargs = call.arguments
        try:
            # The mode is off in here; autocast must be as well, and any rounding mode below.
            with self._pause(), torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
                special = _SHADOWS.get(call.info.packet)
                if special is not None:
                    return special(call.func, args, kwargs, out)
                return call.func(*args, **kwargs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return _NONE  # no kernel for the wider format: the real result stands in, marked so

    def _leave(self, call: _Call, results: list[Tensor], shadow_out: Any) -> None:
        draft = call.draft
        copied = shadow_out is _NONE
        self._store_written(call, copied)
        fresh = self._store_fresh(call, results, [] if copied else _dense(_results(shadow_out))[0])
        outputs = [(t, self._shadow_of(t)) for t in call.written if _is_float(t)] + fresh
        if not outputs:
            self.recorder.drop(draft)
            return
        draft.unshadowed = copied and not call.exact
        inputs = [(t, s if s is not None else self._shadow_of(t)) for t, s in call.befores]
        with self._pause():  # a rounding mode below must not touch the figures
            self.recorder.end(draft, outputs, inputs)
        if self.recorder.count >= MAX_OPERATIONS:
            self.stop(f"more than {MAX_OPERATIONS:,} operations in one step")

    def _store_written(self, call: _Call, copied: bool) -> None:
        index, memory = call.draft.index, self.memory
        for tensor in call.written:
            if not _is_float(tensor):
                continue
            entry = call.entries.get(id(tensor)) or memory.entry(tensor)
            covers = _covers_storage(tensor)
            shadow = call.written_shadows.get(id(tensor))
            if copied:
                if covers:
                    memory.forget(entry)
                elif entry.flat is not None:
                    memory.write(tensor, entry).copy_(tensor.detach())
            elif shadow is not None and entry.flat is not None and entry.flat.numel() < tensor.numel():
                memory.adopt(tensor, entry, shadow)  # `out=` was given an empty tensor and has grown
            if covers:
                entry.writers = (index,)
                entry.external = None
            elif entry.writers[-1:] != (index,):
                entry.writers = (*entry.writers[-15:], index)

    def _store_fresh(
        self, call: _Call, results: list[Tensor], shadow_results: list[Tensor]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """Gives each new result its shadow; results that are views of an argument have one already."""
        known = {entry.alive.cdata for entry in call.entries.values()}
        fresh: list[tuple[Tensor, Tensor | None]] = []
        for position, tensor in enumerate(results):
            if not _is_float(tensor) or tensor.untyped_storage()._cdata in known:
                continue
            entry = self.memory.entry(tensor)
            entry.writers = (call.draft.index,)
            entry.external = None
            self.memory.forget(entry)
            wanted = self.shadow_dtype(tensor.dtype)
            shadow = shadow_results[position] if position < len(shadow_results) else None
            if shadow is None or shadow.shape != tensor.shape or shadow.dtype != wanted:
                fresh.append((tensor, tensor if wanted == tensor.dtype else None))
                continue
            self.memory.adopt(tensor, entry, shadow)
            fresh.append((tensor, shadow))
        return fresh

    def _external(self, tensor: Tensor) -> int:
        with self._pause():
            return self.recorder.external(tensor)

    def _shadow_of(self, tensor: Tensor) -> Tensor | None:
        entry = self.memory.find(tensor)
        return None if entry is None else self.memory.read(tensor, entry)

    def stop(self, reason: str) -> None:
        """Ends the recording; what was recorded so far stays."""
        self.stopped = reason
        self.memory.clear()

    def give_up(self, error: Exception) -> None:
        """The user's run goes on without a re-check, whatever went wrong with it."""
        if is_out_of_memory(error):
            self.stop(OUT_OF_MEMORY)
        else:
            self.stop(
                f"the re-check failed ({type(error).__name__}: {error}); the verdict rests on the gradients alone"
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: PyTorch says so with a plain RuntimeError on the CPU."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)

# Write their first argument without reading it, so its old value is no cause of the new one.
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "set_", "_foreach_copy_", "_foreach_zero_"})

# The re-check is the real result: memory that holds nothing yet.
_EXACT = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted",
                    "resize_", "set_", "lift_fresh", "lift_fresh_copy"})  # fmt: skip


def _shadow_dropout(func: OpOverload, args: Any, kwargs: Any, out: Any) -> Any:
    """Dropout of the re-check under the mask that was drawn."""
    probability, training = args[1], args[2] if len(args) > 2 else True
    mask = out[1]
    if training is False:
        return args[0].clone(), mask
    kept = 1.0 - probability
    return args[0] * mask * (1.0 / kept if kept else 0.0), mask


def _shadow_softmax(func: OpOverload, args: Any, kwargs: Any, out: Any) -> Any:
    """`half_to_float` is refused for an input that is FP32 already."""
    return func(args[0], args[1], False)


def _shadow_of_random_attention(func: OpOverload, args: Any, kwargs: Any, out: Any) -> Any:
    """Fused attention draws its own dropout mask on the device: without dropout it can be run again."""
    position = next((i for i, a in enumerate(func._schema.arguments) if a.name == "dropout_p"), None)
    given = position is not None and position < len(args)
    if args[position] if given else kwargs.get("dropout_p", 0.0):
        raise NotImplementedError
    return func(*args, **kwargs)


# Operators whose re-check is not simply the same call.
_SHADOWS: dict[str, Callable[..., Any]] = {
    "native_dropout": _shadow_dropout,
    "_softmax": _shadow_softmax,
    "_log_softmax": _shadow_softmax,
    **dict.fromkeys(attention.FUSED, attention.recheck_forward),
    **{f"{name}_backward": attention.recheck_backward for name in attention.FUSED},
    "_scaled_dot_product_flash_attention_for_cpu": _shadow_of_random_attention,
}

# Batch norm writes its running statistics (3, 4) while training (5), which some of the schemas do not say, and only
# then, which none of them says.
_BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_impl_index",
                          "batch_norm", "_native_batch_norm_legit"})  # fmt: skip


def _is_float(tensor: Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and tensor.layout == torch.strided


def _tensors(args: Any, kwargs: Any) -> Iterator[Tensor]:
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                if isinstance(item, Tensor):
                    yield item


def _dense(tensors: Iterable[Tensor]) -> tuple[list[Tensor], dict[int, Tensor]]:
    """The tensors, and the values in the place of sparse ones; those values by `id` of the sparse tensor."""
    dense: list[Tensor] = []
    sparse: dict[int, Tensor] = {}
    for tensor in tensors:
        if tensor.layout == torch.sparse_coo:
            sparse[id(tensor)] = tensor._values()
            dense.append(sparse[id(tensor)])
        else:
            dense.append(tensor)
    return dense, sparse


def _written(info: OperatorInfo, args: Any, kwargs: Any) -> list[Tensor]:
    if info.packet in _BATCH_NORMS:
        return list(_tensors(args[3:5], {})) if len(args) > 5 and args[5] else []
    if not info.mutated:
        return []
    positions = [p for p, _ in info.mutated]
    found = [args[p] for p in positions if p < len(args)]
    found += [kwargs[name] for p, name in info.mutated if p >= len(args) and name in kwargs]
    return list(_tensors(found, {}))


def _blanks(info: OperatorInfo, written: list[Tensor]) -> bool:
    """Zeroes whole storages: there is nothing to re-check."""
    return info.packet in ("zero_", "_foreach_zero_") and all(_is_float(t) and _covers_storage(t) for t in written)


def _results(out: Any) -> list[Tensor]:
    return list(_tensors(out if isinstance(out, (list, tuple)) else (out,), {}))


def _covers_storage(tensor: Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()

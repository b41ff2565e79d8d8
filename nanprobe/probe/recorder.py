"""The log of a deep step: one draft per operation while it runs, frozen records when it is over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor

from nanprobe.precision import emulated_op
from nanprobe.precision.views import as_real
from nanprobe.probe import meter
from nanprobe.probe.operators import CONSTANT_WRITERS, OperatorInfo
from nanprobe.probe.sources import Place, SourceFinder
from nanprobe.records import (
    ExternalKind,
    ExternalRecord,
    InputRecord,
    OpRecord,
    Phase,
    Specimen,
    TensorStats,
)

# Operations whose inputs are looked at element by element; a legal -Inf mask makes a few hundred bad operations.
MAX_INSPECTED = 512
CERTAIN = 48  # after so many, those that only pass on what an input had are left out: NaN soon is everywhere
MAX_EXAMINED_NUMEL = 1 << 26


class OpContext(Protocol):
    """What the recorder asks about the moment an operation runs in."""

    def phase(self) -> Phase:
        """The part of the step that is running."""
        ...

    def module_name(self) -> str | None:
        """Path of the innermost module that is running."""
        ...

    def identify(self, tensor: Tensor) -> tuple[ExternalKind, str | None, int | None, tuple[int, ...]]:
        """Kind, name, batch index and dataset indices of a tensor that no operation has written."""
        ...

    def whole(self, tensor: Tensor) -> Tensor:
        """The field of a batch that a tensor is another view of; the tensor itself if of none."""
        ...

    def grid(self, tensor: Tensor) -> str:
        """The format a tensor's numbers are in."""
        ...

    def is_own_code(self, frame: FrameType | None) -> bool:
        """Whether the frame is the user's own code inside a backward pass."""
        ...


@dataclass(slots=True)
class OpDraft:
    """An operation while it runs."""

    index: int
    op: str
    packet: str
    phase: Phase
    module: str | None
    place: Place | None
    node: str | None
    forward_index: int | None
    scalars: tuple[float, ...]
    deliberate: bool
    inputs: list[tuple[tuple[int, ...], int | None, Tensor | None]] = field(default_factory=list)
    input_records: tuple[InputRecord, ...] = ()
    outputs: list[TensorStats] = field(default_factory=list)
    rows: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()
    specimens: tuple[Specimen, ...] = ()
    unshadowed: bool = False
    distribution: str | None = None


@dataclass(slots=True)
class _Pending:
    """Six figures still on the device: lowest, highest and zeros of a tensor and of its re-check; NaN for none."""

    deliver: Callable[[TensorStats], None]
    dtype: str
    shape: tuple[int, ...]
    has_shadow: bool
    figures: Tensor


class Recorder:
    """Collects what a deep step does.

    Args:
        context: phase, module and names at the moment of an operation.
        sources: finds the user's line.
        low_precision: count flushes to zero (the stage computes in FP16 or bf16).
        detailed: on an accelerator, wait for every operation and look at bad ones closely (re-runs); else figures
            stay on the device until the step is over.
    """

    def __init__(self, context: OpContext, sources: SourceFinder, low_precision: bool, detailed: bool) -> None:
        self._context = context
        self._sources = sources
        self._low_precision = low_precision
        self._detailed = detailed
        self.coarse = False  # some figures were left on the device
        self._drafts: list[OpDraft] = []
        self._count = 0
        self._externals: list[tuple[ExternalRecord, Place | None]] = []
        self._forward_of: dict[int, int] = {}  # autograd sequence number -> operation that made the node
        self._view_of: dict[int, tuple[Place | None, str | None]] = {}  # the same for views, which leave no record
        self._pending: list[_Pending] = []
        self._inspected = 0

    @property
    def count(self) -> int:
        """Operations begun so far."""
        return self._count

    def begin(self, info: OperatorInfo, args: Any, kwargs: Any) -> OpDraft:
        """A draft for the operation about to run."""
        node, forward_index, view = self._autograd_place()
        scalars, odd = _scalars(args, kwargs)
        emulated = emulated_op()
        draft = OpDraft(
            index=self._count,
            op=emulated or info.name,
            packet=info.packet,
            phase=self._context.phase() if node is None else Phase.BACKWARD,
            module=self._context.module_name(),
            place=None,
            node=node,
            forward_index=forward_index,
            scalars=scalars,
            deliberate=(odd and not emulated) or (info.packet in CONSTANT_WRITERS and odd),
        )
        self._place(draft, view)
        self._count += 1
        return draft

    def view(self) -> None:
        """A view is being made: its gradient is computed all the same, and leads back to here."""
        if not torch.is_grad_enabled():
            return
        number = torch._C._autograd._get_sequence_nr() - 1
        if number in self._forward_of or number in self._view_of:
            return
        node: Any = torch._C._current_autograd_node()
        if node is None:
            self._view_of[number] = (self._sources.place(), self._context.module_name())
            return
        origin = self._drafts_at(self._forward_of.get(node._sequence_nr()))  # made in backward, for a second one
        if origin is not None:
            self._view_of[number] = (origin.place, origin.module)

    def _place(self, draft: OpDraft, view: tuple[Place | None, str | None] | None) -> None:
        frame = self._sources.frame()
        draft.distribution = self._sources.distribution
        if draft.node is None or self._context.is_own_code(frame):
            draft.place = None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
            if draft.node is not None and torch.is_grad_enabled() and draft.phase is Phase.BACKWARD:
                # A checkpointed block is run again inside backward: these are forward operations.
                draft.phase, draft.node, draft.forward_index = Phase.FORWARD, None, None
            return
        forward = self._drafts_at(draft.forward_index)
        if forward is not None:
            draft.place, draft.module, draft.distribution = forward.place, forward.module, forward.distribution
        elif view is not None:
            draft.place, draft.module = view
        elif frame is not None:
            draft.place = (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def drop(self, draft: OpDraft) -> None:
        """Forgets the newest draft: it made no float tensor."""
        if draft.index == self._count - 1:
            self._count -= 1
            self._forget_forward(draft.index)

    def end(
        self,
        draft: OpDraft,
        outputs: list[tuple[Tensor, Tensor | None]],
        inputs: list[tuple[Tensor, Tensor | None]],
    ) -> None:
        """Measures what the operation made and keeps the draft."""
        self._drafts.append(draft)
        if outputs[0][0].device.type != "cpu" and not self._detailed:
            for tensor, shadow in outputs:
                self._measure_later(tensor, shadow, draft.outputs.append, self._low_precision)
            self._freeze_inputs(draft)
            return
        for tensor, shadow in outputs:
            draft.outputs.append(meter.stats(tensor, self._context.grid(tensor), shadow, self._low_precision))
        bad = [k for k, s in enumerate(draft.outputs) if s.nan_count or s.inf_count]
        worth = bad or _lost(draft)
        if worth and self._inspected < MAX_INSPECTED and not (self._inspected >= CERTAIN and self._inherits(draft)):
            self._inspected += 1
            self._inspect(draft, outputs[bad[0]] if bad else outputs[0], inputs, bool(bad))
        else:
            self._freeze_inputs(draft)

    def _inherits(self, draft: OpDraft) -> bool:
        """Whether what is wrong with the result was so with an input already: nothing began here."""
        nan = any(s.nan_count for s in draft.outputs)
        inf = any(s.inf_count for s in draft.outputs)
        for writers, external, _ in draft.inputs:
            read = [s for w in writers for s in self._outputs_of(w)]
            if external is not None:
                read.append(self._externals[external][0].stats)
            if any(s.nan_count if nan else s.inf_count if inf else s.flushed_count for s in read):
                return True
        return False

    def _outputs_of(self, index: int) -> list[TensorStats]:
        draft = self._drafts_at(index)
        return [] if draft is None else draft.outputs

    def external(self, tensor: Tensor) -> int:
        """Registers a tensor that no recorded operation has written; its index."""
        kind, name, batch_index, dataset_indices = self._context.identify(tensor)
        nan, inf, largest = (0, 0, 0.0)
        rows: tuple[int, ...] = ()
        columns: tuple[int, ...] = ()
        index = len(self._externals)
        if tensor.device.type == "cpu" or self._detailed:
            nan, inf, largest = meter.counts(tensor)
            rows, columns = meter.places(self._context.whole(tensor), nan or inf, largest)
        else:
            self._measure_later(tensor, None, partial(self._complete_external, index), zeros=False)
        stats = TensorStats(self._context.grid(tensor), tuple(tensor.shape), nan, inf, largest)
        record = ExternalRecord(index, kind, name, stats, rows, columns, batch_index, dataset_indices)
        self._externals.append((record, self._sources.place()))
        return index

    def external_name(self, index: int) -> str | None:
        """The name of a registered external, where it is known."""
        return self._externals[index][0].name

    def _complete_external(self, index: int, stats: TensorStats) -> None:
        record, place = self._externals[index]
        self._externals[index] = replace(record, stats=stats), place

    def ops(self) -> tuple[OpRecord, ...]:
        """The records, in order."""
        self._settle()
        return tuple(self._freeze(draft) for draft in self._drafts)

    def externals(self) -> tuple[ExternalRecord, ...]:
        """The tensors nobody wrote, in the order they were met."""
        return tuple(
            ExternalRecord(
                r.index, r.kind, r.name, r.stats, r.rows, r.columns, r.batch_index, r.dataset_indices,
                self._sources.source(place),
            )
            for r, place in self._externals
        )  # fmt: skip

    # An autograd node carries the sequence number the thread had when the forward operation made it; the number in
    # force while an operation runs, less one, is that of its own node. A later operation that makes no node sees the
    # same number, so the first one keeps it.
    def _autograd_place(self) -> tuple[str | None, int | None, tuple[Place | None, str | None] | None]:
        """Name of the running autograd node and its forward operation, or the place of the view that made it."""
        node: Any = torch._C._current_autograd_node()
        number = torch._C._autograd._get_sequence_nr() - 1
        if number not in self._view_of:
            self._forward_of.setdefault(number, self._count)
        if node is None:
            return None, None, None
        name = node.name().removeprefix("torch::autograd::")
        if name == "AccumulateGrad":
            return name, None, None
        number = node._sequence_nr()
        return name, self._root_forward(self._forward_of.get(number)), self._view_of.get(number)

    def _root_forward(self, index: int | None) -> int | None:
        """The forward operation itself, also when the node was made in a backward pass (double backward)."""
        draft = self._drafts_at(index)
        if draft is None:
            return None
        return draft.forward_index if draft.forward_index is not None else index

    def _forget_forward(self, index: int) -> None:
        last = torch._C._autograd._get_sequence_nr() - 1
        if self._forward_of.get(last) == index:
            # The node exists all the same (a comparison, an integer result): keep its place free for the next one.
            del self._forward_of[last]

    def _drafts_at(self, index: int | None) -> OpDraft | None:
        if index is None or index >= len(self._drafts):
            return None
        return self._drafts[index]

    def _inspect(
        self,
        draft: OpDraft,
        output: tuple[Tensor, Tensor | None],
        inputs: list[tuple[Tensor, Tensor | None]],
        bad: bool,
    ) -> None:
        seen = {id(t): (t, s) for t, s in inputs}
        records = []
        for writers, external, tensor in draft.inputs:
            record = _plain_input(writers, external, tensor, self._context)
            if tensor is not None and id(tensor) in seen and tensor.numel() <= MAX_EXAMINED_NUMEL:
                record = meter.inspect_input(record, *seen[id(tensor)])
            records.append(record)
        draft.input_records = tuple(records)
        draft.inputs.clear()
        tensor, shadow = output
        if bad:
            draft.rows, draft.columns = meter.bad_places(tensor)
            wrong: Callable[[Tensor], Tensor] = lambda t: ~torch.isfinite(t)  # noqa: E731
        else:
            assert shadow is not None
            wrong = lambda t: (t == 0) & (shadow != 0)  # noqa: E731
        draft.specimens = meter.specimens(tensor, shadow, inputs, wrong)

    def _freeze_inputs(self, draft: OpDraft) -> None:
        draft.input_records = tuple(_plain_input(w, e, t, self._context) for w, e, t in draft.inputs)
        draft.inputs.clear()

    def _measure_later(
        self, tensor: Tensor, shadow: Tensor | None, deliver: Callable[[TensorStats], None], zeros: bool
    ) -> None:
        self.coarse = True
        shape, dtype = tuple(tensor.shape), self._context.grid(tensor)
        if tensor.numel() == 0:
            deliver(TensorStats(dtype, shape, 0, 0, 0.0))
            return
        rows = [_three_figures(tensor, zeros)]
        if shadow is not None:
            rows.append(_three_figures(shadow, zeros))
        self._pending.append(_Pending(deliver, dtype, shape, shadow is not None, torch.cat(rows)))

    def _settle(self) -> None:
        """Brings the figures of the whole step over in one transfer."""
        if not self._pending:
            return
        device = self._pending[0].figures.device
        on_host = iter(torch.cat([p.figures.to(device) for p in self._pending]).tolist())
        for p in self._pending:
            low, high, zero = next(on_host), next(on_host), next(on_host)
            stats = TensorStats(p.dtype, p.shape, *_from_ends(low, high))
            if p.has_shadow:
                shadow_low, shadow_high, shadow_zero = next(on_host), next(on_host), next(on_host)
                counted = not math.isnan(zero)
                stats = TensorStats(
                    p.dtype, p.shape, *_from_ends(low, high), *_from_ends(shadow_low, shadow_high),
                    flushed_count=max(0, int(zero - shadow_zero)) if counted else 0,
                    zero_count=int(zero) if counted else None,
                )  # fmt: skip
            p.deliver(stats)
        self._pending.clear()

    def _freeze(self, draft: OpDraft) -> OpRecord:
        return OpRecord(
            index=draft.index,
            op=draft.op,
            phase=draft.phase,
            module=draft.module,
            source=self._sources.source(draft.place),
            node=draft.node,
            forward_index=draft.forward_index,
            inputs=draft.input_records,
            outputs=tuple(draft.outputs),
            scalars=draft.scalars,
            deliberate=draft.deliberate,
            rows=draft.rows,
            columns=draft.columns,
            specimens=draft.specimens,
            unshadowed=draft.unshadowed,
            distribution=draft.distribution,
        )


def _three_figures(tensor: Tensor, zeros: bool) -> Tensor:
    """Lowest, highest, and how many are 0 (NaN when not asked for); float64, without waiting for the device."""
    real = as_real(tensor)
    ends = torch.stack(torch.aminmax(real)).double()
    if zeros:
        count = (real.numel() - torch.count_nonzero(real)).double()
        return torch.cat([ends, count.reshape(1)])
    return torch.cat([ends, torch.full((1,), math.nan, dtype=torch.float64, device=ends.device)])


def _from_ends(low: float, high: float) -> meter.Counts:
    """Counts from the two ends alone: "at least one" where the exact number was not looked at."""
    if math.isnan(low) or math.isnan(high):
        return 1, 0, 0.0
    if math.isinf(low) or math.isinf(high):
        return 0, 1, 0.0
    return 0, 0, max(-low, high, 0.0)


def _lost(draft: OpDraft) -> bool:
    """Half of what should not be zero is zero: a place where gradients or a denominator may die."""
    return any(
        s.flushed_count and s.zero_count is not None and 2 * s.flushed_count >= s.numel - s.zero_count + s.flushed_count
        for s in draft.outputs
    )


def _plain_input(
    writers: tuple[int, ...], external: int | None, tensor: Tensor | None, context: OpContext
) -> InputRecord:
    if tensor is None:
        return InputRecord(writers, external)
    return InputRecord(writers, external, tuple(tensor.shape), context.grid(tensor))


def _scalars(args: Any, kwargs: Any) -> tuple[tuple[float, ...], bool]:
    """The plain numbers among the arguments, and whether one of them is not finite."""
    numbers = [float(v) for v in (*args, *kwargs.values()) if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return tuple(numbers), any(not math.isfinite(n) for n in numbers)

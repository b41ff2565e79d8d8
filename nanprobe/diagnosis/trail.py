"""A deep step as a graph: look up what an operation read, who wrote it, and whether it was right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nanprobe.records import DeepStep, ExternalRecord, InputRecord, OpRecord, Phase, TensorStats


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of one tensor at the moment it was read: exact where it was looked at, else as it was written."""

    nan: int
    inf: int
    abs_max: float
    shadow_bad: int | None  # non-finite elements in the re-check; None when there was none
    shadow_abs_max: float | None
    flushed_fraction: float  # share of the re-check's non-zero elements that are 0 here

    @property
    def bad(self) -> int:
        """Elements that are not finite."""
        return self.nan + self.inf

    @property
    def wrong(self) -> bool:
        """Not finite here, finite in the re-check (in most of the elements)."""
        return is_wrong(self.bad, self.shadow_bad)


@dataclass(frozen=True, slots=True)
class Lane:
    """Outputs of an operation with the inputs they were made from; `_foreach_` operations have many lanes."""

    outputs: tuple[TensorStats, ...]
    inputs: tuple[InputRecord, ...]

    @property
    def nan(self) -> int:
        """NaN elements in the outputs."""
        return sum(s.nan_count for s in self.outputs)

    @property
    def inf(self) -> int:
        """Inf elements in the outputs."""
        return sum(s.inf_count for s in self.outputs)


def is_wrong(bad: int, shadow_bad: int | None) -> bool:
    """Whether the re-check removes most of the non-finite elements.

    "Most", because an element on the very edge of a domain may fail in both runs: our choice.
    """
    return bad > 0 and shadow_bad is not None and 2 * shadow_bad <= bad


def bad_count(stats: TensorStats) -> int:
    """Elements of a tensor that are not finite."""
    return stats.nan_count + stats.inf_count


def shadow_bad_count(stats: TensorStats) -> int | None:
    """The same in the re-check; None when there was none."""
    if stats.shadow_nan_count is None or stats.shadow_inf_count is None:
        return None
    return stats.shadow_nan_count + stats.shadow_inf_count


def flushed_fraction(stats: TensorStats) -> float:
    """Share of the re-check's non-zero elements that are 0 here; 0.0 when nothing was flushed."""
    if not stats.flushed_count:
        return 0.0
    zeros = stats.zero_count if stats.zero_count is not None else stats.flushed_count
    return stats.flushed_count / max(1, stats.numel - zeros + stats.flushed_count)


def op_is_wrong(op: OpRecord) -> bool:
    """Whether the operation's result is not finite where the re-check is finite."""
    known = [s for s in op.outputs if bad_count(s)]
    bad = sum(bad_count(s) for s in known)
    shadows = [shadow_bad_count(s) for s in known]
    if op.unshadowed or any(s is None for s in shadows):
        return False
    return is_wrong(bad, sum(s for s in shadows if s is not None))


def base_name(op: str) -> str:
    """The bare name of an operator: "aten._foreach_addcdiv_.ScalarList" is "addcdiv"."""
    parts = op.split(".")
    name = parts[1] if len(parts) > 1 and parts[0] in {"aten", "prims", "torch"} else parts[0]
    return name.removeprefix("_foreach_").strip("_")


class Trail:
    """One deep step, indexed."""

    def __init__(self, deep: DeepStep) -> None:
        self.deep = deep
        self.ops: dict[int, OpRecord] = {op.index: op for op in deep.ops}
        self.externals: dict[int, ExternalRecord] = {e.index: e for e in deep.externals}

    @property
    def low_precision(self) -> bool:
        """The stage computes in FP16 or bf16, and the re-check is FP32."""
        return self.deep.shadow_dtype != "float64"

    def external(self, record: InputRecord) -> ExternalRecord | None:
        """The external an input is, when no operation has written it."""
        return None if record.external is None else self.externals.get(record.external)

    def writers(self, op: OpRecord, record: InputRecord) -> tuple[OpRecord, ...]:
        """The operations before `op` that wrote what it read."""
        return tuple(self.ops[w] for w in record.writers if w in self.ops and w < op.index)

    def value(self, op: OpRecord, record: InputRecord) -> Value:
        """What `op` read: counted in the input itself where it was looked at, else as its writers left it."""
        if record.nan_count is not None:
            return _exact(record)
        written = [s for w in self.writers(op, record) for s in _matching(w, record)]
        external = self.external(record)
        if external is not None and not written:
            written = [external.stats]
        return _joined(written)

    def lanes(self, op: OpRecord) -> tuple[Lane, ...]:
        """The operation's independent parts: one, or one for each tensor of a `_foreach_` operation."""
        n = len(op.outputs)
        if "_foreach_" in op.op and n > 1 and op.inputs and len(op.inputs) % n == 0:
            return tuple(Lane((op.outputs[k],), op.inputs[k::n]) for k in range(n))
        return (Lane(op.outputs, op.inputs),)

    def forward_of(self, op: OpRecord) -> OpRecord | None:
        """The forward operation whose gradient `op` computes."""
        return None if op.forward_index is None else self.ops.get(op.forward_index)

    def reads_gradients(self, op: OpRecord, limit: int = 200) -> bool:
        """Whether something that backward made flows into `op`."""
        seen: set[int] = set()
        stack = [op]
        while stack and len(seen) < limit:
            current = stack.pop()
            for record in current.inputs:
                for writer in self.writers(current, record):
                    if writer.phase is Phase.BACKWARD:
                        return True
                    if writer.index not in seen:
                        seen.add(writer.index)
                        stack.append(writer)
        return False

    def readers(self, index: int) -> tuple[OpRecord, ...]:
        """The operations that read what operation `index` wrote."""
        return tuple(op for op in self.deep.ops if any(index in record.writers for record in op.inputs))


def _exact(record: InputRecord) -> Value:
    shadow_bad = None
    if record.shadow_nan_count is not None and record.shadow_inf_count is not None:
        shadow_bad = record.shadow_nan_count + record.shadow_inf_count
    fraction = 0.0
    if record.zero_count is not None and record.shadow_zero_count is not None:
        numel = 1
        for size in record.shape:
            numel *= size
        flushed = max(0, record.zero_count - record.shadow_zero_count)
        fraction = flushed / max(1, numel - record.shadow_zero_count)
    return Value(
        record.nan_count or 0,
        record.inf_count or 0,
        record.abs_max or 0.0,
        shadow_bad,
        record.shadow_abs_max,
        fraction,
    )


def _matching(writer: OpRecord, record: InputRecord) -> tuple[TensorStats, ...]:
    """The outputs of `writer` that may be the tensor read: those of its shape, else all."""
    same = tuple(s for s in writer.outputs if s.shape == record.shape)
    return same or writer.outputs


def _joined(stats: Iterable[TensorStats]) -> Value:
    parts = tuple(stats)
    shadows = [shadow_bad_count(s) for s in parts]
    known = [s for s in shadows if s is not None]
    largest = [s.shadow_abs_max for s in parts if s.shadow_abs_max is not None]
    return Value(
        nan=max((s.nan_count for s in parts), default=0),
        inf=max((s.inf_count for s in parts), default=0),
        abs_max=max((s.abs_max for s in parts), default=0.0),
        shadow_bad=max(known) if known and len(known) == len(shadows) else None,
        shadow_abs_max=max(largest) if largest else None,
        flushed_fraction=max((flushed_fraction(s) for s in parts), default=0.0),
    )

"""Hand-built records: small deep steps and traces, with every field a test does not care about at its plainest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from nanprobe.records import (
    BatchRecord,
    CallRecord,
    DeepStep,
    ErrorRecord,
    ExternalKind,
    ExternalRecord,
    GradRecord,
    InputRecord,
    OpRecord,
    Outcome,
    ParameterInfo,
    Phase,
    RunRecord,
    Source,
    Specimen,
    StageName,
    StageTrace,
    StepRecord,
    Target,
    TensorStats,
    UpdateRecord,
)

SCRIPT = "/work/train.py"


def line(number: int, code: str = "x") -> Source:
    """A line of the script."""
    return Source(SCRIPT, number, code)


def stats(
    shape: tuple[int, ...] = (4,),
    nan: int = 0,
    inf: int = 0,
    peak: float = 1.0,
    *,
    dtype: str = "float32",
    shadow_nan: int | None = 0,
    shadow_inf: int | None = 0,
    shadow_peak: float | None = 1.0,
    flushed: int = 0,
    zeros: int | None = None,
) -> TensorStats:
    """A tensor that is finite and right, unless told otherwise."""
    if flushed and zeros is None:
        zeros = flushed
    return TensorStats(
        dtype, shape, nan, inf, peak, shadow_nan, shadow_inf, shadow_peak, flushed_count=flushed, zero_count=zeros
    )


class Step:
    """Writes a deep step operation by operation; each call returns the index of what it made."""

    def __init__(self, step: int = 0, shadow_dtype: str = "float64", loss_scale: float | None = None) -> None:
        self.step = step
        self.shadow_dtype = shadow_dtype
        self.loss_scale = loss_scale
        self.ops: list[OpRecord] = []
        self.externals: list[ExternalRecord] = []
        self.grads: list[GradRecord] = []
        self.updates: list[UpdateRecord] = []
        self.loss_writers: tuple[int, ...] = ()

    def external(
        self,
        kind: ExternalKind = ExternalKind.BATCH,
        name: str | None = None,
        made_of: TensorStats | None = None,
        **details: Any,
    ) -> InputRecord:
        """A tensor from outside, ready to be read."""
        record = ExternalRecord(len(self.externals), kind, name, made_of or stats(), **details)
        self.externals.append(record)
        return InputRecord((), record.index, record.stats.shape, record.stats.dtype)

    def op(
        self,
        name: str,
        *inputs: int | InputRecord,
        out: TensorStats | Sequence[TensorStats] | None = None,
        at: int = 10,
        phase: Phase = Phase.FORWARD,
        **details: Any,
    ) -> int:
        """An operation: `mul` is `aten.mul.Tensor`; inputs are indices of earlier ones or records."""
        outputs = (out,) if isinstance(out, TensorStats) else tuple(out or (stats(),))
        index = len(self.ops)
        self.ops.append(
            OpRecord(
                index=index,
                op=name if "." in name else f"aten.{name}.Tensor",
                phase=phase,
                module=details.pop("module", None),
                source=details.pop("source", line(at)),
                node=details.pop("node", None),
                forward_index=details.pop("forward_index", None),
                inputs=tuple(self._input(i) for i in inputs),
                outputs=outputs,
                **details,
            )
        )
        return index

    def read(self, index: int, like: TensorStats | None = None, **exact: Any) -> InputRecord:
        """What operation `index` wrote, with exact counts; `like` takes them from a tensor."""
        made = like or self.ops[index].outputs[0]
        counted: dict[str, Any] = {
            "nan_count": made.nan_count,
            "inf_count": made.inf_count,
            "zero_count": made.zero_count or 0,
            "abs_max": made.abs_max,
            "shadow_nan_count": made.shadow_nan_count,
            "shadow_inf_count": made.shadow_inf_count,
            "shadow_zero_count": (made.zero_count or 0) - made.flushed_count,
            "shadow_abs_max": made.shadow_abs_max,
        }
        return InputRecord((index,), None, made.shape, made.dtype, **{**counted, **exact})

    def grad(self, name: str, *writers: int, made_of: TensorStats | None = None, **details: Any) -> None:
        """The gradient of a parameter, taken from its writer unless told otherwise."""
        found = made_of or (self.ops[writers[0]].outputs[0] if writers else stats())
        lost = details.pop("lost", 0.0)
        self.grads.append(
            GradRecord(
                name, found, tuple(writers), details.pop("flushed", lost), lost, details.pop("norm", 1.0), **details
            )
        )

    def update(self, name: str, *writers: int, dtype: str = "float32", **details: Any) -> None:
        """The update of a parameter."""
        values: dict[str, Any] = {"changed_fraction": 1.0, "swallowed_fraction": 0.0, "nan_count": 0, "inf_count": 0,
                                  "shadow_nan_count": 0, "shadow_inf_count": 0}  # fmt: skip
        self.updates.append(UpdateRecord(name, dtype, writers=tuple(writers), **{**values, **details}))

    def done(self) -> DeepStep:
        """The record."""
        return DeepStep(
            step=self.step,
            ops=tuple(self.ops),
            externals=tuple(self.externals),
            grads=tuple(self.grads),
            updates=tuple(self.updates),
            loss_writers=self.loss_writers,
            shadow_dtype=self.shadow_dtype,
            loss_scale=self.loss_scale,
        )

    def _input(self, given: int | InputRecord) -> InputRecord:
        if isinstance(given, InputRecord):
            return given
        made = self.ops[given].outputs[0]
        return InputRecord((given,), None, made.shape, made.dtype)


def half_step(step: int = 0, loss_scale: float | None = None) -> Step:
    """A deep step of a low-precision stage: FP32 beside FP16."""
    return Step(step, "float32", loss_scale)


def step_record(
    index: int, loss: float | None = 1.0, grads: Iterable[float | None] = (0.1, 0.1), **details: Any
) -> StepRecord:
    """A step that went well, unless told otherwise."""
    plain: dict[str, Any] = {
        "backward_passes": 1, "optimizer": "SGD", "loss_scale": None, "skipped": False, "weight_abs_max": (1.0, 1.0),
        "learning_rates": (0.1,), "source": line(90, "opt.step()"),
    }  # fmt: skip
    return StepRecord(index=index, loss=loss, grad_abs_max=tuple(grads), **{**plain, **details})


def healthy_steps(count: int = 10, **details: Any) -> tuple[StepRecord, ...]:
    """A run of good steps."""
    return tuple(step_record(k, **details) for k in range(count))


def parameters(*names: str, **details: Any) -> tuple[ParameterInfo, ...]:
    """Watched parameters, 4×4 float32."""
    plain: dict[str, Any] = {"shape": (4, 4), "dtype": "float32", "requires_grad": True, "optimizer": "SGD"}
    return tuple(
        ParameterInfo(name, name.rpartition(".")[0] or None, **{**plain, **details})
        for name in (names or ("a.weight", "b.weight"))
    )


def trace(name: StageName = StageName.FP32, *deep: Step, **details: Any) -> StageTrace:
    """A completed stage; `as_written` for FP32 and whenever said so."""
    dtype = "float32" if name is StageName.FP32 else "float16"
    plain: dict[str, Any] = {
        "outcome": Outcome.COMPLETED, "dtype": dtype, "as_written": True, "parameters": parameters(),
        "steps": healthy_steps(), "deep_steps": tuple(d.done() for d in deep),
    }  # fmt: skip
    return StageTrace(name, **{**plain, **details})


def run(*stages: StageTrace) -> RunRecord:
    """A run of these stages."""
    return RunRecord(Target("train.py"), stages, "cpu", "2.13.0", "0.1.0", 50, 0, "/tmp/run")


def call(name: str, step: int = 0, at: int = 50, **details: object) -> CallRecord:
    """A call of the script's."""
    return CallRecord(step, step, name, line(at, name), details)


def calls(*names: str, steps: int = 3, **details: object) -> tuple[CallRecord, ...]:
    """The same calls in each of some steps, on lines 50, 51, ...; optimizer "SGD" where one is named."""
    owned = {"scaler.unscale_", "scaler.step", "optimizer.step", "optimizer.zero_grad"}
    return tuple(
        call(name, k, 50 + position, **({"optimizer": "SGD"} if name in owned else {}), **details)
        for k in range(steps)
        for position, name in enumerate(names)
    )


def error(message: str, kind: str = "RuntimeError", step: int = 0, at: int = 70) -> ErrorRecord:
    """An exception that ended the script."""
    return ErrorRecord(kind, message, (f"{kind}: {message}",), line(at), step)


def batch(step: int, index: int, peak: float = 1.0, name: str = "x") -> BatchRecord:
    """A batch of 8 samples that a DataLoader handed out."""
    indices = tuple(range(8 * index, 8 * index + 8))
    field = ExternalRecord(0, ExternalKind.BATCH, name, stats((8, 4), peak=peak), batch_index=index)
    return BatchRecord(step, index, indices, (field,))


def specimen(real: float, shadow: float | None, *inputs: float) -> Specimen:
    """An element that went wrong, made from inputs that are the same in both runs."""
    return Specimen((0,), real, shadow, tuple((x, x) for x in inputs))


def with_steps(stage: StageTrace, *changed: StepRecord) -> StageTrace:
    """The stage with some of its steps replaced, by index."""
    new = {s.index: s for s in changed}
    return replace(stage, steps=tuple(new.get(s.index, s) for s in stage.steps))

"""What was measured: frozen records that cross from the child process to the diagnosis.

No torch here. Every record is plain data and survives a trip through JSON (`nanprobe.storage`).
Numbers may be NaN or infinite; `None` means "not measured", never "zero".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class StageName(str, Enum):
    """The stages of the protocol, in the order they run."""

    FP32 = "fp32"
    FP16 = "fp16"
    AMP = "amp"


class Outcome(str, Enum):
    """How a stage ended."""

    COMPLETED = "completed"
    CRASHED = "crashed"
    SKIPPED = "skipped"
    TIMEOUT = "timeout"


class Phase(str, Enum):
    """The part of a training step in which an operation ran."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    UPDATE = "update"
    CALLS = "calls"


class ExternalKind(str, Enum):
    """What a tensor is that no recorded operation has written."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    BATCH = "batch"
    OPTIMIZER_STATE = "optimizer_state"
    GRADIENT = "gradient"  # left by an earlier step
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Source:
    """One line of the user's code."""

    file: str  # absolute path
    line: int  # 1-based
    code: str  # the line's text, stripped
    function: str | None = None  # name of the enclosing function


@dataclass(frozen=True, slots=True)
class TensorStats:
    """One float tensor as the stage computed it, beside its re-check in higher precision."""

    dtype: str  # "float16", "bfloat16", "float32", "float64"; the grid it was rounded to in the raw stage
    shape: tuple[int, ...]
    nan_count: int  # elements that are NaN
    inf_count: int  # elements that are +Inf or -Inf
    abs_max: float  # largest finite magnitude; 0.0 when none is finite
    shadow_nan_count: int | None = None  # the same three in the re-check; None when there was no re-check
    shadow_inf_count: int | None = None
    shadow_abs_max: float | None = None
    flushed_count: int = 0  # elements that are 0 here and not 0 in the re-check
    zero_count: int | None = None  # elements that are 0 here; None when not counted

    @property
    def numel(self) -> int:
        """Number of elements; 1 for a scalar."""
        n = 1
        for size in self.shape:
            n *= size
        return n


@dataclass(frozen=True, slots=True)
class InputRecord:
    """One tensor that an operation read."""

    writers: tuple[int, ...]  # indices of the operations that last wrote it (several when written in parts)
    external: int | None = None  # index into DeepStep.externals when no operation wrote it
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nan_count: int | None = None  # exact, but only looked at where the operation's output is not finite
    inf_count: int | None = None
    zero_count: int | None = None
    abs_max: float | None = None
    shadow_nan_count: int | None = None
    shadow_inf_count: int | None = None
    shadow_zero_count: int | None = None
    shadow_abs_max: float | None = None


@dataclass(frozen=True, slots=True)
class Specimen:
    """One output element that went wrong, with the input elements it was made from."""

    position: tuple[int, ...]  # index of the element in the output
    real: float  # what the stage computed
    shadow: float | None  # the re-check
    inputs: tuple[tuple[float, float | None], ...]  # (real, re-check) of each input that broadcasts to the output


@dataclass(frozen=True, slots=True)
class OpRecord:
    """One operation of a deep step: what it was, where it stands, what it made."""

    index: int  # order in the deep step, from 0
    op: str  # "aten.mul.Tensor"
    phase: Phase
    module: str | None  # path of the innermost module, e.g. "encoder.layers.3"
    source: Source | None  # the user's line (of the forward operation, in backward)
    node: str | None  # autograd node that ran it, e.g. "SqrtBackward0"; None outside backward
    forward_index: int | None  # the forward operation whose gradient this computes
    inputs: tuple[InputRecord, ...]
    outputs: tuple[TensorStats, ...]
    scalars: tuple[float, ...] = ()  # the plain numbers among its arguments, in order
    deliberate: bool = False  # writes a constant that is not finite on purpose (fill, masked_fill, full, ...)
    rows: tuple[int, ...] = ()  # indices along dim 0 of non-finite output elements (at most 16)
    columns: tuple[int, ...] = ()  # indices along the last dim (at most 16)
    specimens: tuple[Specimen, ...] = ()  # at most 4
    unshadowed: bool = False  # the re-check could not be computed; the real result was copied
    distribution: str | None = None  # the module of torch.distributions that ran it, "normal"; None outside them


@dataclass(frozen=True, slots=True)
class ExternalRecord:
    """A tensor read by a deep step that no recorded operation has written."""

    index: int
    kind: ExternalKind
    name: str | None  # parameter, buffer or batch-field name, where known
    stats: TensorStats
    rows: tuple[int, ...] = ()  # rows (dim 0) with non-finite elements, at most 16; else with an absurd magnitude
    columns: tuple[int, ...] = ()
    batch_index: int | None = None  # which batch of the DataLoader it came from
    dataset_indices: tuple[int, ...] = ()  # dataset index of every row, where known
    source: Source | None = None  # where the user's code made or first used it


@dataclass(frozen=True, slots=True)
class GradRecord:
    """One parameter's gradient in a deep step, as left by backward, beside its re-check; loss scale still in it."""

    name: str
    stats: TensorStats
    writers: tuple[int, ...]  # operations that last wrote the gradient
    flushed_fraction: float  # share of elements non-zero in the re-check that are 0 here
    lost_norm_fraction: float  # share of the re-check's L2 norm carried by the elements that became 0
    shadow_norm: float | None = None  # L2 norm of the re-check
    relative_error: float | None = None  # ||grad - re-check|| / ||re-check||
    exponent_offset: int = 0  # the exponents of the re-check (of the gradient, where there is none): bin i holds the
    #                           finite non-zero elements with 2^(offset+i) <= |g| < 2^(offset+i+1), loss scale in them
    exponent_counts: tuple[int, ...] = ()  # () when not counted
    backward: int = 0  # the backward pass of the step that left it so, from 0: the first that made it non-finite


@dataclass(frozen=True, slots=True)
class UpdateRecord:
    """What one optimizer step did to one parameter in a deep step."""

    name: str
    dtype: str
    changed_fraction: float  # share of elements the update changed
    swallowed_fraction: float  # share of elements changed in the re-check but not here (w + dw == w)
    nan_count: int  # after the update
    inf_count: int
    shadow_nan_count: int | None = None
    shadow_inf_count: int | None = None
    writers: tuple[int, ...] = ()
    update_abs_max: float | None = None  # largest change in the re-check
    external: int | None = None  # for what the script itself changed in place: index into DeepStep.externals


@dataclass(frozen=True, slots=True)
class DeepStep:
    """Every operation of one training step, with its re-check."""

    step: int
    ops: tuple[OpRecord, ...]
    externals: tuple[ExternalRecord, ...]
    grads: tuple[GradRecord, ...]
    updates: tuple[UpdateRecord, ...]
    loss_writers: tuple[int, ...] = ()  # operations that wrote the tensor backward started from
    truncated: str | None = None  # why recording stopped early (out of memory, too many operations)
    shadow_dtype: str = "float32"
    loss_scale: float | None = None  # the factor in the scaled gradients of this step
    coarse: bool = False  # on an accelerator: figures of whole tensors only, nothing was looked at closely
    # FP16 or bf16 tensors that the script itself changed in place, outside models, backward and optimizers
    rewritten: tuple[UpdateRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call that matters for the order of AMP, as it happened."""

    step: int
    backward: int  # backward passes seen before this call
    name: str  # "backward", "scaler.init", "scaler.scale", "scaler.unscale_", "scaler.step", "scaler.update",
    #            "clip_grad_norm_", "clip_grad_value_", "optimizer.step", "optimizer.zero_grad", "module.zero_grad",
    #            "lr_scheduler.step"
    source: Source | None
    details: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch that a DataLoader handed out with something remarkable in it, and its first rows' dataset indices."""

    step: int
    index: int  # batches handed out before it
    dataset_indices: tuple[int, ...]
    fields: tuple[ExternalRecord, ...]  # its float tensors


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """A watched parameter."""

    name: str
    module: str | None
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    optimizer: str | None = None  # the optimizer that owns it, e.g. "AdamW"
    master_of: str | None = None  # name of the low-precision parameter it is the FP32 master copy of


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One optimizer update (or one that GradScaler skipped)."""

    index: int
    backward_passes: int  # backward calls that led to it
    optimizer: str | None  # class name, numbered when there are several
    loss: float | None  # unscaled value backward started from
    loss_scale: float | None  # factor in the gradients; None when not scaled
    skipped: bool  # the scaler found a non-finite gradient and left the weights alone
    grad_abs_max: tuple[
        float | None, ...
    ]  # per parameter (order of StageTrace.parameters), scale still in it; NaN/Inf as found;
    #                                         None when the parameter has no gradient
    weight_abs_max: tuple[float | None, ...]  # per parameter, after the update; None when not measured in this step
    nonfinite_weights: tuple[str, ...] = ()  # parameters not finite after this update
    nonfinite_buffers: tuple[str, ...] = ()
    learning_rates: tuple[float, ...] = ()  # one per param group
    source: Source | None = None  # the line that stepped
    nonfinite_settings: tuple[str, ...] = ()  # hyper-parameters that are NaN or Inf, "weight_decay = nan"
    loss_factor: float | None = None  # the constant by which the script multiplied the loss last, before backward


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """The exception that ended the user's script."""

    kind: str  # class name
    message: str
    traceback: tuple[str, ...]  # its last lines
    source: Source | None
    step: int


@dataclass(frozen=True, slots=True)
class StageTrace:
    """Everything one stage left behind."""

    name: StageName
    outcome: Outcome
    dtype: str  # format the stage computed in: "float32", "float16", "bfloat16"
    as_written: bool = False
    reason: str | None = None  # why it was skipped, crashed or cut off
    seconds: float = 0.0
    device: str = "cpu"
    parameters: tuple[ParameterInfo, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    deep_steps: tuple[DeepStep, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    batches: tuple[BatchRecord, ...] = ()
    error: ErrorRecord | None = None
    facts: dict[str, object] = field(
        default_factory=dict
    )  # what the script was seen to use (autocast, scaler, half weights)
    notices: tuple[str, ...] = ()  # what the user should know about how it was run ("cuda was mapped to the CPU")
    # the raw stage only: the update that first made a weight non-finite; the stage went on with FP32 updates after it
    contained_update: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """What was diagnosed."""

    path: str
    argv: tuple[str, ...] = ()
    mode: str = "script"  # "script" | "module" | "contract"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A whole run of the protocol."""

    target: Target
    stages: tuple[StageTrace, ...]
    device: str
    torch_version: str
    nanprobe_version: str
    steps: int  # steps asked for
    seed: int
    directory: str
    notices: tuple[str, ...] = ()

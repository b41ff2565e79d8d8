"""Hand-built runs and their diagnoses, one for each kind of ending, for tests of storage and reports.

Every maker takes the run directory and the folder of the user's script, and returns a RunRecord and its Diagnosis.
`ALL` holds them by name.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nanprobe.findings import BatchPlace, Diagnosis, Finding, Kind, LayerRow, Remedy, Severity, Status
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

Sample = tuple[RunRecord, Diagnosis]
PROJECT = "/project"
NAN, INF = math.nan, math.inf

# The script that the samples' source lines point into; written to the project folder where a test wants context lines.
SCRIPT = """\
import torch
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, width, k=4.0):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.k = k

    def forward(self, h):
        h = torch.relu(self.up(h))
        h = h * self.k  # sharpen
        return self.down(h)


def distance(a, b):
    squared = (a - b).pow(2).sum(-1)
    return torch.sqrt(squared)


def train(model, loader, optimizer, scaler):
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""


def line(text: str, project: str = PROJECT, function: str | None = None) -> Source:
    """The first line of the script that starts with a text."""
    for number, code in enumerate(SCRIPT.splitlines(), 1):
        if code.strip().startswith(text):
            return Source(str(Path(project) / "train.py"), number, code.strip(), function)
    raise LookupError(text)


def step(index: int, **changes: object) -> StepRecord:
    """A healthy step of a model of two parameters."""
    values: dict[str, object] = {
        "index": index,
        "backward_passes": 1,
        "optimizer": "AdamW",
        "loss": round(2.31 * 0.97**index, 4),
        "loss_scale": None,
        "skipped": False,
        "grad_abs_max": (0.031, 0.0007),
        "weight_abs_max": (0.5, 0.1),
        "learning_rates": (1e-3,),
    }
    return StepRecord(**{**values, **changes})  # type: ignore[arg-type]


PARAMETERS = (
    ParameterInfo("encoder.layers.3.ffn.down.weight", "encoder.layers.3.ffn.down", (64, 256), "float32", True, "AdamW"),
    ParameterInfo("encoder.layers.3.ffn.down.bias", "encoder.layers.3.ffn.down", (64,), "float32", True, "AdamW"),
)


def stage(name: StageName, count: int = 50, **changes: object) -> StageTrace:
    """A stage that went through, as written for amp and put around for the others."""
    values: dict[str, object] = {
        "name": name,
        "outcome": Outcome.COMPLETED,
        "dtype": "float32" if name is StageName.FP32 else "float16",
        "as_written": name is StageName.AMP,
        "seconds": {"fp32": 1.2, "fp16": 1.4, "amp": 1.9}[name.value],
        "parameters": PARAMETERS,
        "steps": tuple(step(i, loss_scale=4096.0 if name is StageName.AMP else None) for i in range(count)),
        "facts": {"autocast": True, "scaler": {"init_scale": 65536.0}},
    }
    return replace(StageTrace(name, Outcome.COMPLETED, "float16"), **{**values, **changes})  # type: ignore[arg-type]


def skipped(name: StageName, reason: str) -> StageTrace:
    """A stage that was not run."""
    return stage(
        name, 0, outcome=Outcome.SKIPPED, reason=reason, seconds=0.0, parameters=(), facts={}, as_written=False
    )


def run(directory: str | Path, *stages: StageTrace, **changes: object) -> RunRecord:
    """A run of train.py on the CPU."""
    values: dict[str, object] = {
        "target": Target("train.py", ("--epochs", "1")),
        "stages": stages,
        "device": "cpu",
        "torch_version": "2.13.0",
        "nanprobe_version": "0.1.0",
        "steps": 50,
        "seed": 0,
        "directory": str(directory),
        "notices": ("no GPU was used: cuda ran on the CPU, with FP16 emulated",),
    }
    return RunRecord(**{**values, **changes})  # type: ignore[arg-type]


def layer(name: str, **changes: object) -> LayerRow:
    """A healthy row of the layers table."""
    values: dict[str, object] = {
        "name": name,
        "module": name.rpartition(".")[0],
        "kind": None,
        "grad_abs_max": {"fp32": 0.0021, "fp16": 0.0021, "amp": 0.0021},
        "flushed_fraction": {"fp16": 0.004, "amp": 0.0},
        "lost_norm_fraction": {"fp16": 1e-5, "amp": 0.0},
        "headroom_bits": 12.5,
        "nonfinite_steps": {"fp32": 0, "fp16": 0, "amp": 0},
    }
    return LayerRow(**{**values, **changes})  # type: ignore[arg-type]


def healthy_layers(count: int = 42) -> tuple[LayerRow, ...]:
    """Layers with nothing to say, the largest gradient 0.031 and the smallest headroom 9.4 bits among them."""
    rows = [layer(f"encoder.layers.{i // 4}.{('q', 'k', 'v', 'out')[i % 4]}.weight") for i in range(count - 1)]
    top = {"fp32": 0.031, "fp16": 0.0309, "amp": 0.031}
    return (*rows, layer("head.weight", grad_abs_max=top, headroom_bits=9.4))


def healthy(directory: str | Path, project: str = PROJECT) -> Sample:
    """Nothing wrong; the scaler's one calibration skip is not a finding."""
    amp = stage(StageName.AMP)
    first = step(0, loss_scale=65536.0, skipped=True, grad_abs_max=(INF, 12.0))
    amp = replace(amp, steps=(first, *amp.steps[1:]))
    stages = (stage(StageName.FP32), stage(StageName.FP16), amp)
    rows = tuple(replace(row, nonfinite_steps={"fp32": 0, "fp16": 0, "amp": 1}) for row in healthy_layers())
    return run(directory, *stages), Diagnosis(Status.HEALTHY, None, (), rows)


def overflow(directory: str | Path, project: str = PROJECT) -> Sample:
    """An activation leaves FP16's range in the amp stage, with the deep look that shows it."""
    source = line("h = h * self.k", project, "forward")
    finding = Finding(
        code="NP101",
        kind=Kind.OVERFLOW,
        severity=Severity.ERROR,
        title="activation of encoder.layers.3.ffn reaches 81,920 and overflows FP16 (limit 65,504)",
        stage=StageName.AMP,
        step=12,
        phase=Phase.FORWARD,
        op="aten.mul.Tensor",
        module="encoder.layers.3.ffn",
        source=source,
        batch=BatchPlace(12, (3, 7), (1234, 88), (5,)),
        evidence={
            "dtype": "float16",
            "nan_count": 0,
            "inf_count": 2,
            "numel": 32768,
            "abs_max": 65000.0,
            "recheck_abs_max": 81920.0,
            "recheck_nonfinite": 0,
            "example_position": [3, 5],
            "example_result": INF,
            "example_recheck": 81920.0,
            "example_inputs": [20480.0],
            "limit": 65504.0,
            "bits_over": 0.3227,
            "loss_scale": 4096.0,
        },
        why="In FP16 the product of the activation and self.k is Inf; the same numbers in FP32 give 81,920, 0.32 bits "
        "above the largest FP16 value. The Inf reaches the loss 6 operations later, through the softmax of "
        "encoder.layers.4.attn, where Inf - Inf makes the NaN.",
        remedies=(
            Remedy("run this block in FP32: with torch.autocast('cuda', enabled=False): h = h.float() * self.k"),
            Remedy("fold k into self.down's weight, so that the product is never formed", True, 50),
            Remedy("use bfloat16, whose range is that of FP32", None, None),
        ),
        parameters=("encoder.layers.3.ffn.down.weight",),
    )
    warning = Finding(
        code="NP205",
        kind=Kind.UNDERFLOW,
        severity=Severity.WARNING,
        title="18% of the gradient of embed.weight is flushed to zero",
        stage=StageName.FP16,
        parameter="embed.weight",
        evidence={"flushed_fraction": 0.18, "lost_norm_fraction": 0.02},
    )
    note = Finding(
        code="NP107",
        kind=Kind.OVERFLOW,
        severity=Severity.NOTE,
        title="Adam's second moment would overflow without FP32 master weights",
        stage=StageName.FP16,
        step=3,
        phase=Phase.UPDATE,
        source=line("scaler.step", project, "train"),
    )
    rows = (
        layer(
            "encoder.layers.3.ffn.down.weight",
            kind=Kind.OVERFLOW,
            grad_abs_max={"fp32": 0.052, "fp16": INF, "amp": NAN},
            headroom_bits=-0.3,
            nonfinite_steps={"fp32": 0, "fp16": 31, "amp": 12},
        ),
        layer(
            "embed.weight",
            kind=Kind.UNDERFLOW,
            grad_abs_max={"fp32": 4.1e-6, "fp16": 4.2e-6, "amp": 4.1e-6},
            flushed_fraction={"fp16": 0.18, "amp": 0.0},
            headroom_bits=21.9,
        ),
        layer("head.bias", nonfinite_steps={"fp16": 31, "amp": 12}),
        layer("encoder.layers.4.attn.in_proj_weight", nonfinite_steps={"fp16": 31, "amp": 12}),
    )
    steps = tuple(_amp_step(index) for index in range(50))
    amp = stage(StageName.AMP, steps=steps, deep_steps=(_deep_step(source),), calls=_calls(project))
    fp16_steps = tuple(step(i, loss=NAN if i == 3 else 2.31 * 0.97**i) for i in range(50))
    fp16 = stage(StageName.FP16, contained_update=3, steps=fp16_steps)
    answer = Diagnosis(Status.FAILING, finding, (finding, warning, note), rows + healthy_layers())
    return run(directory, stage(StageName.FP32), fp16, amp), answer


def _amp_step(index: int) -> StepRecord:
    bad = index >= 12 and index % 3 == 0
    loss = NAN if bad else 2.31 * 0.97**index
    grads = (NAN, NAN) if bad else (127.0, 2.9)
    return step(index, loss=loss, loss_scale=4096.0, skipped=bad, grad_abs_max=grads)


def _deep_step(source: Source) -> DeepStep:
    shape = (8, 64)
    op = OpRecord(
        index=0,
        op="aten.mul.Tensor",
        phase=Phase.FORWARD,
        module="encoder.layers.3.ffn",
        source=source,
        node=None,
        forward_index=None,
        inputs=(InputRecord((), 0, shape, "float16", 0, 0, 100, 20480.0, 0, 0, 100, 20480.0),),
        outputs=(TensorStats("float16", shape, 0, 2, 65000.0, 0, 0, 81920.0, 0, 100),),
        scalars=(4.0,),
        rows=(3, 7),
        columns=(5,),
        specimens=(Specimen((3, 5), INF, 81920.0, ((20480.0, 20480.0),)),),
    )
    external = ExternalRecord(0, ExternalKind.BATCH, "x", op.outputs[0], (3,), (5,), 12, (1234, 88), source)
    grad = GradRecord(PARAMETERS[0].name, op.outputs[0], (0,), 0.0, 0.0, 0.2, None)
    update = UpdateRecord(PARAMETERS[0].name, "float32", 0.0, 0.0, 0, 0)
    return DeepStep(12, (op,), (external,), (grad,), (update,), (0,), None, "float32", 4096.0)


def _calls(project: str) -> tuple[CallRecord, ...]:
    where = line("scaler.scale", project, "train")
    return (CallRecord(0, 0, "scaler.scale", where, {"scale": 4096.0, "finite": NAN}),)


def underflow(directory: str | Path, project: str = PROJECT) -> Sample:
    """Gradients flushed to zero in a script that trains in FP16 without a loss scale."""
    finding = Finding(
        code="NP201",
        kind=Kind.UNDERFLOW,
        severity=Severity.ERROR,
        title="97% of the gradient of encoder.layers.0.attn.in_proj_weight is flushed to zero in FP16",
        stage=StageName.FP16,
        step=0,
        phase=Phase.BACKWARD,
        op="aten.mm.default",
        module="encoder.layers.0.attn",
        parameter="encoder.layers.0.attn.in_proj_weight",
        evidence={
            "flushed_fraction": 0.971,
            "lost_norm_fraction": 0.88,
            "shadow_abs_max": 2.2e-8,
            "smallest_subnormal": 2.0**-24,
            "loss_scale": None,
            "suggested_loss_scale": 8192.0,
        },
        why="The FP32 re-check has non-zero values where FP16 has zeros: they are below 2^-25 and round to zero.",
        remedies=(Remedy("scale the loss: torch.amp.GradScaler('cuda', init_scale=8192)"),),
    )
    rows = tuple(
        layer(
            f"encoder.layers.{i}.attn.in_proj_weight",
            kind=Kind.UNDERFLOW,
            grad_abs_max={"fp32": 2.2e-8 * 2**i, "fp16": 0.0},
            flushed_fraction={"fp16": 0.971 - i / 100},
            headroom_bits=40.0 - i,
        )
        for i in range(16)
    )
    stages = (stage(StageName.FP32), stage(StageName.FP16, as_written=True), stage(StageName.AMP, as_written=False))
    return run(directory, *stages, notices=()), Diagnosis(Status.FAILING, finding, (finding,), rows)


LATER = "fp32 failed, and no precision can mend that; --all-stages runs it all the same"


def data(directory: str | Path, project: str = PROJECT) -> Sample:
    """A NaN in the input, with its rows and their dataset indices."""
    finding = Finding(
        code="NP301",
        kind=Kind.DATA,
        severity=Severity.ERROR,
        title="the input x holds 3 NaN in 2 rows of batch 7",
        stage=StageName.FP32,
        step=7,
        phase=Phase.DATA,
        source=line("for x, y in loader", project, "train"),
        batch=BatchPlace(7, (3, 11), (1234, 88), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)),
        evidence={"field": "x", "nan_count": 3, "inf_count": 0, "shape": [32, 16], "dtype": "float32"},
        why="The values are NaN before the model has touched them, so neither the model nor the precision made them.",
        remedies=(
            Remedy("look at the samples: dataset[1234], dataset[88]"),
            Remedy("drop them, or fill them with torch.nan_to_num, where the dataset is built"),
        ),
    )
    steps = (*(step(i) for i in range(7)), step(7, loss=NAN, grad_abs_max=(NAN, NAN), nonfinite_weights=("w",)))
    field = ExternalRecord(0, ExternalKind.BATCH, "x", TensorStats("float32", (32, 16), 3, 0, 4.2), (3, 11), (0,), 7)
    broken = stage(StageName.FP32, steps=steps, batches=(BatchRecord(7, 7, (1234, 88), (field,)),))
    stages = (broken, skipped(StageName.FP16, LATER), skipped(StageName.AMP, LATER))
    answer = Diagnosis(Status.FAILING, finding, (finding,), (layer("w", nonfinite_steps={"fp32": 1}),))
    return run(directory, *stages), answer


def graph(directory: str | Path, project: str = PROJECT) -> Sample:
    """The gradient of sqrt at zero, in FP32."""
    finding = Finding(
        code="NP402",
        kind=Kind.GRAPH,
        severity=Severity.ERROR,
        title="the gradient of sqrt at 0 is infinite, and 0 * Inf is NaN",
        stage=StageName.FP32,
        step=0,
        phase=Phase.BACKWARD,
        op="aten.div.Tensor",
        source=line("return torch.sqrt", project, "distance"),
        batch=BatchPlace(rows=(5,)),
        evidence={"value": INF, "shadow_value": INF, "input_value": 0.0, "zero_count": 1, "node": "SqrtBackward0"},
        why="The derivative 1 / (2 sqrt(x)) has no value at x = 0, and FP64 gives the same: no precision mends it.",
        remedies=(Remedy("torch.sqrt(squared + 1e-12), or torch.linalg.vector_norm, whose gradient at 0 is 0"),),
    )
    broken = stage(StageName.FP32, steps=(step(0, grad_abs_max=(NAN, NAN), nonfinite_weights=("a", "b")),))
    stages = (broken, skipped(StageName.FP16, LATER), skipped(StageName.AMP, LATER))
    return run(directory, *stages), Diagnosis(Status.FAILING, finding, (finding,), ())


def divergence(directory: str | Path, project: str = PROJECT) -> Sample:
    """The loss grows until FP32 itself overflows."""
    finding = Finding(
        code="NP501",
        kind=Kind.DIVERGENCE,
        severity=Severity.ERROR,
        title="the loss grew from 2.31 to 1.8e+38 in 31 steps of AdamW at learning rate 3.0",
        stage=StageName.FP32,
        step=31,
        phase=Phase.UPDATE,
        source=line("scaler.step", project, "train"),
        evidence={
            "learning_rate": 3.0,
            "optimizer": "AdamW",
            "loss_start": 2.31,
            "loss_last": 1.8e38,
            "grew_first": "loss",
            "loss_growth_per_step": 16.4,
            "grad_norm": 4.4e30,
            "warmup": False,
        },
        why="Loss, gradient and weights grow together and stay finite for 31 steps: consistent with too large steps.",
        remedies=(Remedy("lower the learning rate: 0.003 is a start"), Remedy("clip the gradient norm to 1.0")),
    )
    steps = tuple(step(i, loss=2.31 * 16.4**i if i < 31 else INF) for i in range(32))
    stages = (stage(StageName.FP32, steps=steps), skipped(StageName.FP16, LATER), skipped(StageName.AMP, LATER))
    return run(directory, *stages), Diagnosis(Status.FAILING, finding, (finding,), ())


def misuse(directory: str | Path, project: str = PROJECT) -> Sample:
    """Clipping before unscale_; user names with markup and terminal escapes in them are harmless."""
    finding = Finding(
        code="NP601",
        kind=Kind.MISUSE,
        severity=Severity.ERROR,
        title="gradients are clipped to norm 1.0 while they still carry the loss scale 65,536",
        stage=StageName.AMP,
        step=0,
        phase=Phase.CALLS,
        module="[red]block[/red]\x1b[31m",
        source=line("nn.utils.clip_grad_norm_", project, "train"),
        evidence={"max_norm": 1.0, "loss_scale": 65536.0, "effective_max_norm": 1.0 / 65536, "calls": 50},
        why="The limit is compared with scaled gradients, so it is 65,536 times tighter than written.",
        remedies=(Remedy("call scaler.unscale_(optimizer) before clip_grad_norm_"),),
    )
    stages = (stage(StageName.FP32), stage(StageName.FP16), stage(StageName.AMP))
    return run(directory, *stages), Diagnosis(Status.FAILING, finding, (finding,), healthy_layers(3))


def inconclusive(directory: str | Path, project: str = PROJECT) -> Sample:
    """The script raised before its first step."""
    error = ErrorRecord(
        kind="FileNotFoundError",
        message="[Errno 2] No such file or directory: 'data/train.csv'",
        traceback=(
            'File "train.py", line 24, in train',
            "    for x, y in loader:",
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        ),
        source=line("for x, y in loader", project, "train"),
        step=0,
    )
    reason = "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'"
    crashed = stage(StageName.FP32, 0, outcome=Outcome.CRASHED, reason=reason, error=error, seconds=0.3, parameters=())
    later = "the script crashed in fp32 before its first step"
    stages = (crashed, skipped(StageName.FP16, later), skipped(StageName.AMP, later))
    why = "the script raised before its first optimizer step, so there are no gradients to look at"
    return run(directory, *stages), Diagnosis(Status.INCONCLUSIVE, None, (), (), (why,))


def crash_after_fault(directory: str | Path, project: str = PROJECT) -> Sample:
    """The amp stage overflows, and then the script's own check raises."""
    record, answer = overflow(directory, project)
    error = ErrorRecord("RuntimeError", "loss is nan, giving up", ("RuntimeError: loss is nan, giving up",), None, 14)
    amp = record.stages[2]
    reason = "RuntimeError: loss is nan, giving up"
    crashed = replace(amp, outcome=Outcome.CRASHED, reason=reason, error=error, steps=amp.steps[:15])
    findings = answer.findings[:1]
    return run(directory, *record.stages[:2], crashed), Diagnosis(
        answer.status, answer.verdict, findings, answer.layers
    )


ALL: dict[str, Callable[..., Sample]] = {
    maker.__name__: maker
    for maker in (
        overflow,
        underflow,
        data,
        graph,
        divergence,
        misuse,
        healthy,
        inconclusive,
        crash_after_fault,
    )
}

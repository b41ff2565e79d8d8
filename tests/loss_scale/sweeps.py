"""Hand-built sweeps, one for each kind of ending, for tests of the analysis and of its reports."""

import math
import random
from collections.abc import Callable
from dataclasses import replace

from nanprobe.formats import FP16
from nanprobe.loss_scale.analysis import analyse_sweep
from nanprobe.loss_scale.histograms import ACTIVATION, ExponentHistogram, histogram_of
from nanprobe.loss_scale.outcomes import predict_outcomes
from nanprobe.loss_scale.policies import PYTORCH
from nanprobe.loss_scale.result import (
    HIGH_EDGE,
    LOW_EDGE,
    Confirmation,
    RealRun,
    ScalerHistory,
    SweepResult,
    SweepRun,
    WeightUpdate,
)
from nanprobe.records import Target

STEPS = 12


def run(**changes: object) -> SweepRun:
    """The head of a sweep of a small script."""
    values: dict[str, object] = {
        "target": Target("train.py", ("--epochs", "1")),
        "device": "cpu",
        "torch_version": "2.13.0",
        "nanprobe_version": "0.1.0",
        "seed": 0,
        "directory": "/cache/nanprobe/runs/20260102-030405-train-1f3a",
        "steps": STEPS,
        "measured_scale": 65536.0,
    }
    return SweepRun(**{**values, **changes})  # type: ignore[arg-type]


def gradients(peak: float, bits: float, count: int = 200, seed: int = 0) -> list[float]:
    """Numbers spread evenly over the powers of two from `peak` down; `peak` itself is among them, exactly."""
    source = random.Random(seed)
    return [peak, *(source.choice((-1, 1)) * peak * 2.0 ** -source.uniform(0.01, bits) for _ in range(count))]


def tensor(layer: str, step: int, peak: float, bits: float, *, kind: str = "parameter", scale: float = 65536.0):
    """The histogram of one tensor of a layer, measured at a loss scale; `peak` is unscaled."""
    name = f"{layer}.weight".lstrip(".") if kind == "parameter" else f"{layer} output".strip()
    values = [scale * value for value in gradients(peak, bits, seed=step)]
    return histogram_of(values, name=name, layer=layer, kind=kind, step=step, loss_scale=scale)


def model(peaks: dict[str, float], bits: float = 12, steps: int = STEPS) -> list[ExponentHistogram]:
    """A parameter and an activation gradient for each layer in each step, a little smaller as steps go on."""
    return [
        tensor(layer, step, peak * 0.97**step * (0.5 if kind == ACTIVATION else 1.0), bits, kind=kind)
        for step in range(steps)
        for layer, peak in peaks.items()
        for kind in ("parameter", ACTIVATION)
    ]


# Largest gradients, unscaled. 4.7 fits at 2^13 (38,502) and overflows at 2^14.
TRANSFORMER = {
    "embed": 0.02,
    "encoder.layers.0.attn": 0.4,
    "encoder.layers.0.ffn": 0.9,
    "encoder.layers.1.attn": 0.3,
    "encoder.layers.1.ffn": 1.3,
    "head": 4.7,
}


def falling_scaler(last: float = 8192.0) -> ScalerHistory:
    """A scaler that halves at once from 65536 until it comes to `last`, and stays there."""
    fall = round(math.log2(65536.0 / last))
    scales = [max(65536.0 / 2**step, last) for step in range(STEPS)]
    return ScalerHistory(PYTORCH_AS_WRITTEN, tuple(scales), tuple(step < fall for step in range(STEPS)))


PYTORCH_AS_WRITTEN = replace(PYTORCH, name="this script")


def transformer() -> SweepResult:
    """The case known from practice: the scale falls from 65536 to 8192 by repeated overflow."""
    histograms = model(TRANSFORMER)
    rows = {row.scale: row for row in predict_outcomes(histograms, FP16).scale_rows()}
    confirmations = tuple(
        Confirmation(edge, rows[scale], RealRun(scale, STEPS, 0, 0, rows[scale].flushed_fraction, 0.001))
        for edge, scale in ((LOW_EDGE, 1.0), (HIGH_EDGE, 8192.0))
    )
    return analyse_sweep(run(), histograms, scaler=falling_scaler(), confirmations=confirmations)


def healthy() -> SweepResult:
    """A wide window and a script without a scaler of its own."""
    small = run(notices=("no GPU was used: cuda ran on the CPU, with FP16 emulated",))
    return analyse_sweep(small, model({"": 0.003, "fc": 0.001}))


def conflicting() -> SweepResult:
    """One layer overflows at the scale another needs."""
    peaks = {"backbone.stem": 3e-9, "backbone.body": 0.01, "head.[red]scores[/red]": 9.0}
    return analyse_sweep(run(), model(peaks), scaler=falling_scaler(4096.0))


def wide_tensor() -> SweepResult:
    """A single tensor whose gradients need more range than FP16 has."""
    return analyse_sweep(run(), model({"pooler": 1.0}, bits=80))


def no_gradients() -> SweepResult:
    """A script that computes nothing in FP16."""
    return analyse_sweep(run(measured_scale=None, steps=0), [])


def bfloat16() -> SweepResult:
    """The transformer's gradients in another format."""
    return analyse_sweep(run(), model(TRANSFORMER), number_format="bf16")


def tiny_gradient() -> SweepResult:
    """Two weights, inputs of 1e-4, a target of 1e-5: real runs at three scales, side by side."""
    true = -2e-9
    histograms = [histogram_of([true * 65536, true * 65536], name="weight", layer="", step=0, loss_scale=65536.0)]
    runs = (
        _tiny_run(1.0, true, held=0.0, flushed=1.0),
        _tiny_run(16.0, true, held=-5.960464e-8, flushed=0.0),
        _tiny_run(65536.0, true, held=-1.310706e-4, flushed=0.0),
        RealRun(2.0**40, 1, 1, 1, 0.0, 0.0, (_update(0, -math.inf, -math.inf, 0.0),)),
    )
    return analyse_sweep(run(steps=1), histograms, real_runs=runs)


def _tiny_run(scale: float, true: float, held: float, flushed: float) -> RealRun:
    updates = tuple(_update(index, held, held / scale, -0.1 * held / scale) for index in (0, 1))
    return RealRun(scale, 1, 0, 0, flushed, flushed, updates)


def _update(index: int, held: float, unscaled: float, change: float) -> WeightUpdate:
    return WeightUpdate("weight", (0, index), 0, held, unscaled, change, 0.05, 0.05 + change)


ALL: dict[str, Callable[[], SweepResult]] = {
    "transformer": transformer,
    "healthy": healthy,
    "conflicting": conflicting,
    "wide_tensor": wide_tensor,
    "no_gradients": no_gradients,
    "bfloat16": bfloat16,
    "tiny_gradient": tiny_gradient,
}

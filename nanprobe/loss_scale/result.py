"""The whole answer of a sweep: what was run, what was measured, and what follows from it. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanprobe.findings import Status
from nanprobe.loss_scale.outcomes import ScaleRow
from nanprobe.loss_scale.policies import ScalerPolicy
from nanprobe.loss_scale.replay import PolicyOutcome
from nanprobe.loss_scale.spectra import LayerSpectrum
from nanprobe.loss_scale.window import LayerWindow, Limits, Window
from nanprobe.records import Target

LOW_EDGE, HIGH_EDGE = "low", "high"
# A run at another scale rounds differently from its first update on, so its gradients drift apart from those of the
# recorded run; our choice of what is still the same flushed share.
SAME_SHARE, SAME_SHARE_RELATIVE = 2e-3, 0.1


@dataclass(frozen=True, slots=True)
class SweepRun:
    """What was run: the head of the report."""

    target: Target
    device: str
    torch_version: str
    nanprobe_version: str
    seed: int
    directory: str
    steps: int  # recorded, with histograms
    measured_scale: float | None  # loss scale of the recorded run's first step; None when nothing was recorded
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ScalerHistory:
    """What the script's own scaler was set to, and did in the recorded steps."""

    policy: ScalerPolicy
    scales: tuple[float, ...]  # in each step
    skipped: tuple[bool, ...]  # whether the step was skipped
    as_written: bool = True  # False: the script has no scaler, and one with PyTorch's defaults was put around it

    @property
    def skipped_steps(self) -> int:
        """Steps in which the weights stayed as they were."""
        return sum(self.skipped)

    @property
    def effective_step_fraction(self) -> float:
        """Share of the steps that updated the weights."""
        return 1.0 - self.skipped_steps / len(self.skipped) if self.skipped else 0.0


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """What one real step did to one element of one parameter."""

    parameter: str
    index: tuple[int, ...]  # of the element
    step: int
    gradient: float  # as the low precision held it, loss scale still in it
    unscaled_gradient: float  # as the optimizer got it; NaN or infinite when the step was skipped
    update: float  # weight_after - weight_before
    weight_before: float
    weight_after: float


@dataclass(frozen=True, slots=True)
class RealRun:
    """A real run with the loss scale held at one value."""

    scale: float
    steps: int
    overflowing_tensors: int  # gradient tensors with an overflow in at least one step
    skipped_steps: int
    flushed_fraction: float | None  # of the elements that are not 0 before rounding, over all steps; None: not measured
    lost_norm_fraction: float | None
    updates: tuple[WeightUpdate, ...] = ()  # the same elements in every run, a few
    reason: str | None = None  # why the run ended early


@dataclass(frozen=True, slots=True)
class Confirmation:
    """A real run at one edge of the window, beside what the histograms say of that scale."""

    edge: str  # LOW_EDGE | HIGH_EDGE
    predicted: ScaleRow
    real: RealRun

    @property
    def agrees(self) -> bool:
        """Whether the real run overflows or not as predicted, and flushes the predicted share."""
        if self.real.reason is not None or bool(self.predicted.overflowing_tensors) != bool(
            self.real.overflowing_tensors
        ):
            return False
        if self.real.flushed_fraction is None:
            return True
        tolerance = SAME_SHARE + SAME_SHARE_RELATIVE * self.predicted.flushed_fraction
        return abs(self.real.flushed_fraction - self.predicted.flushed_fraction) <= tolerance


@dataclass(frozen=True, slots=True)
class Advice:
    """The scaler settings to use, and why."""

    init_scale: float | None  # None when no scale can be advised
    growth_interval: int | None
    why: str  # one sentence, with its numbers
    code: str | None  # a line to paste; None when there is nothing to scale
    remedies: tuple[str, ...] = ()  # what else to do, first things first; filled when no scale is safe


@dataclass(frozen=True, slots=True)
class SweepResult:
    """Everything `nanprobe sweep-scale` says. Scales are powers of two, fractions of 1, gradients unscaled."""

    run: SweepRun
    number_format: str  # PyTorch's name, "float16"
    limits: Limits
    status: Status
    reasons: tuple[str, ...]  # why it is failing, or could not be told
    window: Window | None  # None when nothing was measured
    layers: tuple[LayerWindow, ...] = ()
    scales: tuple[ScaleRow, ...] = ()  # 2^0 to 2^32, all layers
    step_highest_scales: tuple[float | None, ...] = ()  # of each recorded step; None where even 2^0 overflows
    policies: tuple[PolicyOutcome, ...] = ()
    growth_intervals: tuple[PolicyOutcome, ...] = ()  # the advised settings with other intervals
    advice: Advice | None = None
    scaler: ScalerHistory | None = None  # the script's own
    confirmations: tuple[Confirmation, ...] = ()
    real_runs: tuple[RealRun, ...] = ()  # of --scales
    bootstrap: dict[str, int] = field(default_factory=dict)  # steps, resamples, block_length, seed
    spectra: tuple[LayerSpectrum, ...] = ()  # exponents of the recorded gradients, by layer

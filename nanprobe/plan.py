"""What is to be run: the plan of a whole run and the request for one stage. Plain data, picklable, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nanprobe.interventions import Intervention
from nanprobe.records import StageName, Target

DEFAULT_STEPS = 50
DEFAULT_BUDGET = 120.0  # seconds for trying remedies
NARROW_AUTOCAST = "narrow_autocast"  # in `facts`: PyTorch refuses what the script does under a wider autocast
SETUP_STEP = -1  # in `deep_steps`: everything the script does before its first training step


@dataclass(frozen=True, slots=True)
class ScalerSettings:
    """A GradScaler's settings; None: as the script says, and PyTorch's defaults where it has no scaler."""

    init_scale: float | None = None
    growth_factor: float | None = None
    backoff_factor: float | None = None
    growth_interval: int | None = None

    def given(self) -> dict[str, Any]:
        """The settings that are not None, by the names of GradScaler's arguments."""
        names = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything `nanprobe diagnose` was asked for."""

    target: Target
    steps: int = DEFAULT_STEPS
    stages: tuple[StageName, ...] = (StageName.FP32, StageName.FP16, StageName.AMP)
    dtype: str = "float16"  # low precision of the fp16 and amp stages: "float16" | "bfloat16"
    device: str = "auto"  # "auto" | "cpu" | "cuda"
    seed: int = 0
    init_scale: float | None = None  # replaces the GradScaler's own; None: as the script says, else 65536
    growth_interval: int | None = None  # the same for growth_interval
    growth_factor: float | None = None  # the same for growth_factor
    backoff_factor: float | None = None  # the same for backoff_factor
    timeout: float = 600.0  # seconds for each stage
    until_failure: bool = False  # run past `steps` to the script's end or the first failure
    all_stages: bool = False  # run later stages even when fp32 fails
    allow_writes: bool = False
    show_output: bool = False
    recipe: str | None = None  # name of the recipe that settings came from
    working_directory: str | None = None  # absolute; where the script runs; None: where nanprobe was started

    @property
    def scaler(self) -> ScalerSettings:
        """What the GradScaler of every stage is set to."""
        return ScalerSettings(self.init_scale, self.growth_factor, self.backoff_factor, self.growth_interval)


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything `nanprobe sweep-scale` was asked for."""

    run: RunPlan
    number_format: str = "float16"
    scales: tuple[float, ...] = ()  # run exactly these for real
    confirm: bool = True  # run the window's edges for real


@dataclass(frozen=True, slots=True)
class StageRequest:
    """What one child process is to run and watch."""

    stage: StageName
    plan: RunPlan
    directory: str  # the stage's own directory, absolute; the child writes trace.jsonl and output.log there
    facts: dict[str, object] = field(default_factory=dict)  # what the fp32 stage saw the script use
    deep_steps: tuple[int, ...] = ()  # steps to look at operation by operation
    deep_ends: bool = True  # also the first and (when `expected_steps` is known) the last step
    expected_steps: int | None = None  # steps the script took in an earlier stage, if fewer than plan.steps
    label: str | None = None  # what progress calls it, when it is no stage of the protocol
    sweep: bool = False  # keep gradients unrounded, and take a histogram of each (`sweep-scale`)
    hold_scale: bool = False  # the loss is scaled by plan.init_scale even where the script does not scale
    sampled_elements: int = 0  # of each parameter, whose every update is written down
    rerun: bool = False  # a second run of the stage, for its deep steps only: stop after the last of them
    interventions: tuple[Intervention, ...] = ()  # remedies put in from outside (`--verify`)

"""What is to be run: the plan of a whole run and the request for one stage. Plain data, picklable, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanprobe.interventions import Intervention
from nanprobe.records import StageName, Target

DEFAULT_STEPS = 50
SETUP_STEP = -1  # in `deep_steps`: everything the script does before its first training step


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
    timeout: float = 600.0  # seconds for each stage
    until_failure: bool = False  # run past `steps` to the script's end or the first failure
    all_stages: bool = False  # run later stages even when fp32 fails
    allow_writes: bool = False
    show_output: bool = False


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

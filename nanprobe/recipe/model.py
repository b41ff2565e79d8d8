"""What a recipe says: a target, settings, limits, and the outcome to expect. Plain data; None where it says nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanprobe.fail_on import FailOn
from nanprobe.findings import Kind, Status
from nanprobe.plan import ScalerSettings
from nanprobe.records import StageName


@dataclass(frozen=True, slots=True)
class Limits:
    """What a check measures beside the verdict. Each concerns the stages in the script's own low precision."""

    max_skipped_steps: int | None = None  # steps of a stage that the scaler may skip
    max_flushed_fraction: float | None = None  # of the non-zero gradient elements of any one parameter
    min_headroom_bits: float | None = None  # doublings until the largest scaled gradient of any parameter overflows
    max_seconds: float | None = None  # of the whole check of this recipe, loading torch not counted

    def needs_low_precision(self) -> bool:
        """Whether a limit can only be measured in a low-precision stage."""
        return not (self.max_skipped_steps is self.max_flushed_fraction is self.min_headroom_bits is None)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the verdict has to point; everything that is given has to hold."""

    lines: tuple[int, ...] = ()  # one of these lines of the source
    file: str | None = None  # regular expression, searched in the path of the source
    module: str | None = None  # regular expression, searched in the module's path
    parameter: str | None = None  # regular expression, searched in the parameter's name


@dataclass(frozen=True, slots=True)
class SweepExpectation:
    """What `nanprobe sweep-scale` has to say; names as in its JSON document. Of several values one has to hold."""

    status: Status | None = None
    lowest_scale: tuple[float, ...] = ()
    highest_scale: tuple[float, ...] = ()
    low_set_by: str | None = None  # regular expressions, searched in the layer's path
    high_set_by: str | None = None
    overflowing_layer: str | None = None  # of the conflict, where no scale is safe
    needing_layer: str | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """What `nanprobe diagnose` has to say. Of several values one has to hold."""

    status: Status = Status.HEALTHY
    kinds: tuple[Kind, ...] = ()  # of the verdict, as all that follows
    codes: tuple[str, ...] = ()
    stages: tuple[StageName, ...] = ()
    steps: tuple[int, ...] = ()  # counted from 0
    place: Place = Place()
    sweep: SweepExpectation | None = None
    wants_diagnosis: bool = True  # False: only the sweep is looked at


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole recipe."""

    name: str  # what it is called on the command line and in reports
    path: Path  # of its file
    about: str | None = None  # one line
    target: str | None = None  # a script, relative to the recipe's folder; None with no module: settings only
    module: str | None = None  # as for python -m, from the recipe's folder
    args: tuple[str, ...] = ()  # of the script
    steps: int | None = None
    stages: tuple[StageName, ...] | None = None
    dtype: str | None = None
    seed: int | None = None
    device: str | None = None
    timeout: float | None = None  # seconds a stage
    scaler: ScalerSettings = field(default_factory=ScalerSettings)
    limits: Limits = Limits()
    fail_on: str | None = None  # as for --fail-on
    expect: Expectation = field(default_factory=Expectation)

    @property
    def folder(self) -> Path:
        """Where the recipe lies, and its target runs."""
        return self.path.parent

    @property
    def is_scenario(self) -> bool:
        """Whether it is settings only, for a script of the user's own."""
        return self.target is None and self.module is None

    @property
    def failing(self) -> FailOn:
        """Which findings it counts as failing."""
        return FailOn.parse(self.fail_on or "error")

    def settings(self) -> dict[str, Any]:
        """What it says of a run, by the names of RunPlan's fields; nothing else."""
        names = ("steps", "stages", "dtype", "seed", "device", "timeout")
        said = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**said, **self.scaler.given()}

"""What a remedy changes in a run: plain, picklable data that travels to the child. No torch.

Each class says what to do; `nanprobe.treatment` does it. What the user's own lines can say is an `EditedFile`: the
child then runs exactly the text that the printed diff gives.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EditedFile:
    """The text to run in place of one of the user's files; the file itself stays as it is."""

    path: str  # absolute
    text: str


@dataclass(frozen=True, slots=True)
class Islands:
    """Modules that compute in FP32 whatever is around them."""

    modules: tuple[str, ...]  # paths, as in ParameterInfo.module


@dataclass(frozen=True, slots=True)
class MasterWeights:
    """FP32 copies of half-precision weights, which the optimizers then work on."""


@dataclass(frozen=True, slots=True)
class ClipGradients:
    """Every optimizer's gradients clipped just before it steps, the loss scale taken out."""

    max_norm: float


@dataclass(frozen=True, slots=True)
class ScaleRate:
    """Every learning rate times a factor, whatever schedule sets it."""

    factor: float


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Learning rates that rise to their full value over the first updates."""

    updates: int


@dataclass(frozen=True, slots=True)
class RaiseEps:
    """A larger eps in every optimizer that has one."""

    eps: float


@dataclass(frozen=True, slots=True)
class DropRows:
    """Samples left out of every batch a DataLoader hands out: those named, and those that are not finite."""

    dataset_indices: tuple[int, ...] = ()
    nonfinite: bool = True  # also rows with NaN or Inf in them, wherever they turn up
    largest: float | None = None  # also rows with a magnitude above this


Intervention = EditedFile | Islands | MasterWeights | ClipGradients | ScaleRate | WarmUp | RaiseEps | DropRows


@dataclass(frozen=True, slots=True)
class Treatment:
    """Everything that is changed in one run of a stage."""

    interventions: tuple[Intervention, ...] = ()
    init_scale: float | None = None  # of GradScaler; None: as it is
    growth_interval: int | None = None
    dtype: str | None = None  # format of a stage put around the script; None: as it is
    facts: tuple[tuple[str, object], ...] = ()  # what the treated script is to be taken for, where an edit changes it

    @property
    def edits(self) -> tuple[EditedFile, ...]:
        """The files whose text is replaced."""
        return tuple(i for i in self.interventions if isinstance(i, EditedFile))

"""A training program as plain data: what the generator draws, and what is printed as a script a user might have."""

from __future__ import annotations

from dataclasses import dataclass, field

from fuzz.faults import Fault


@dataclass(frozen=True)
class Layer:
    """One layer of the model, on the hidden tensor `h`."""

    kind: str  # a key of `layers.LAYERS`
    activation: str = "torch.relu"


@dataclass(frozen=True)
class Program:
    """A small training script, with at most one fault in it."""

    shape: str = "vectors"  # "vectors" [B, W] | "tokens", "sequences" [B, T, W] | "images" [B, W, H, H]
    layers: tuple[Layer, ...] = ()
    width: int = 8
    task: str = "regression"  # "regression" | "classification" | "multilabel"
    optimizer: str = "sgd"  # a key of `loops.OPTIMIZERS`
    precision: str = "fp32"  # "fp32" | "amp" | "bf16" | "half" | "masters"
    init_scale: float = 65536.0  # of the script's own GradScaler
    scaler: bool = True  # under "amp": the script has a GradScaler
    accumulation: int = 1
    clip: str | None = None  # None | "norm" | "value"
    data: str = "list"  # "list" | "loader" | "shuffled" | "rows" (a Dataset of its own, with dictionaries)
    form: str = "script"  # "script" | "contract"
    batch: int = 4
    steps: int = 6
    seed: int = 0
    backwards: bool = False  # the model's parts are registered in the opposite order; no number changes by that
    fault: Fault | None = field(default=None)

    @property
    def micro_batches(self) -> int:
        """Batches that the whole run takes."""
        return self.steps * self.accumulation

    @property
    def outputs(self) -> int:
        """Numbers the model gives for an example."""
        return 1 if self.task == "regression" else 3

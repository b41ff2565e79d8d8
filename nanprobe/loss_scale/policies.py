"""How loss scalers move their scale: PyTorch's, Keras', DeepSpeed's, Megatron-LM's, fairseq's, Apex', or one's own.

All of them halve (or so) after an overflow and double after a run of good steps; they differ in where they start, how
long the run is, how many overflows they forgive, and where they stop. As read in the sources named at each policy:

- the count of good steps starts again after every overflow and after every growth;
- *hysteresis* n: the first n - 1 overflows are forgiven. DeepSpeed and Megatron-LM refill the allowance only when the
  scale grows, not after a good step, so every overflow in between lowers the scale;
- *tolerance* t (fairseq): an overflow lowers the scale only when overflows are at least a share t of the steps since
  the scale last changed; t = 0 by default, so each one does;
- all skip the step that overflowed, forgiven or not.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

from nanprobe.formats import FP32


@dataclass(frozen=True, slots=True)
class ScalerPolicy:
    """The settings of one dynamic loss scaler."""

    name: str
    init_scale: float
    growth_interval: int  # good steps in a row before the scale grows
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    hysteresis: int = 1  # overflows, counted since the last growth, until one lowers the scale
    tolerance: float = 0.0  # share of overflows since the last change of scale below which it stays
    min_scale: float = 0.0
    max_scale: float = math.inf
    stop_scale: float | None = None  # training ends with an error when an overflow finds or brings the scale this low


# Source: torch/amp/grad_scaler.py (defaults) and the kernel of _amp_update_scale_; no lower limit, and a growth that
# would leave float32 does not happen.
PYTORCH = ScalerPolicy("PyTorch GradScaler", init_scale=2.0**16, growth_interval=2000)

# Source: keras/src/optimizers/loss_scale_optimizer.py, Keras 3; no limits.
KERAS = ScalerPolicy("Keras", init_scale=2.0**15, growth_interval=2000)

# Source: deepspeed/runtime/fp16/loss_scaler.py, and the defaults of the "fp16" section of its configuration
# (deepspeed/runtime/precision_config.py and constants.py); an overflow at the lowest scale raises.
DEEPSPEED = ScalerPolicy(
    "DeepSpeed", init_scale=2.0**16, growth_interval=1000, hysteresis=2, min_scale=1.0, stop_scale=1.0
)

# Source: megatron/core/optimizer/grad_scaler.py, and the defaults of --initial-loss-scale, --loss-scale-window,
# --hysteresis and --min-loss-scale.
MEGATRON = ScalerPolicy("Megatron-LM", init_scale=2.0**32, growth_interval=1000, hysteresis=2, min_scale=1.0)

# Source: fairseq/optim/dynamic_loss_scaler.py, the class's defaults; fairseq-train itself starts at 2^7. A scale
# of 1e-4 raises.
FAIRSEQ = ScalerPolicy("fairseq", init_scale=2.0**15, growth_interval=2000, stop_scale=1e-4)

# Source: apex/amp/scaler.py; growth stops at 2^24.
APEX = ScalerPolicy("Apex", init_scale=2.0**16, growth_interval=2000, max_scale=2.0**24)

NAMED_POLICIES = (PYTORCH, KERAS, DEEPSPEED, MEGATRON, FAIRSEQ, APEX)


@dataclass(slots=True)
class ScalerState:
    """A scaler at work; `scale` is what the next step uses."""

    policy: ScalerPolicy
    scale: float
    good_steps: int = 0  # since the last overflow or growth
    steps_since_change: int = 0  # of the scale, for the tolerance
    overflows_since_change: int = 0
    allowance: int = 1  # overflows left, this one included, until one lowers the scale
    stopped: bool = False  # training ended with an error

    @classmethod
    def start(cls, policy: ScalerPolicy) -> ScalerState:
        """The scaler before the first step."""
        return cls(policy, scale=policy.init_scale, allowance=policy.hysteresis)

    def update(self, overflow: bool) -> None:
        """One step's outcome; a step that overflowed was skipped."""
        if overflow:
            self.overflow()
        else:
            self.advance(1)

    def advance(self, steps: int) -> None:
        """A number of good steps in a row, no more than `steps_to_growth`."""
        self.good_steps += steps
        self.steps_since_change += steps
        if self.good_steps == self.policy.growth_interval:
            self._grow()

    @property
    def steps_to_growth(self) -> int:
        """Good steps until the scale grows."""
        return self.policy.growth_interval - self.good_steps

    def overflow(self) -> None:
        """One skipped step."""
        self.good_steps = 0
        self.steps_since_change += 1
        self.overflows_since_change += 1
        if self.allowance > 1:
            self.allowance -= 1
        elif self.overflows_since_change / self.steps_since_change >= self.policy.tolerance:
            self._back_off()

    def _back_off(self) -> None:
        stop = self.policy.stop_scale
        if stop is not None and self.scale <= stop:
            self.stopped = True
            return
        lowered = _to_float32(self.scale * self.policy.backoff_factor)
        if stop is not None and lowered <= stop and self.policy.min_scale < stop:
            self.stopped = True  # fairseq stops rather than go there; DeepSpeed still uses its lowest scale
            return
        self.scale = max(lowered, self.policy.min_scale)
        self._restart()

    def _grow(self) -> None:
        self.good_steps = 0
        self.allowance = self.policy.hysteresis
        grown = min(self.scale * self.policy.growth_factor, self.policy.max_scale)
        if not FP32.overflows(grown):  # the frameworks hold the scale in float32
            self.scale = _to_float32(grown)
        self._restart(overflows=self.overflows_since_change)

    def _restart(self, overflows: int = 0) -> None:
        """The scale has changed. Growth keeps the count of overflows, as fairseq does."""
        self.steps_since_change = 0
        self.overflows_since_change = overflows


def _to_float32(value: float) -> float:
    """The nearest float32; powers of two are unchanged down to 2^-149."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded

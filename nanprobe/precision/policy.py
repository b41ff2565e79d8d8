"""How a stage is run: which of the script's own precision choices hold, and what is put around it.

No torch here: a policy is decided from the plan and from what the `fp32` stage saw the script use.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from nanprobe.plan import NARROW_AUTOCAST, StageRequest
from nanprobe.records import StageName


class Who(str, Enum):
    """Whose autocast or scaler is at work."""

    NOBODY = "nobody"
    SCRIPT = "script"
    NANPROBE = "nanprobe"


@dataclass(frozen=True, slots=True)
class StagePolicy:
    """One stage's precision."""

    stage: StageName
    dtype: str  # the format the stage computes in
    as_written: bool  # the script runs with its own precision choices
    keep_low_requests: bool  # `.half()`, `dtype=torch.float16` and the like are honoured; else they become float32
    autocast: Who
    scaler: Who
    rounding: bool = False  # every result is rounded to `dtype` by nanprobe, tensors stay float32
    narrow: bool = False  # nanprobe's autocast holds for the models' own forward, whose outputs are made float32

    @property
    def low_precision(self) -> bool:
        """The stage computes in FP16 or bf16 somewhere."""
        return self.dtype != "float32"


def policy_for(request: StageRequest) -> StagePolicy:
    """The policy of a stage; `request.facts` come from the fp32 stage."""
    facts = request.facts
    low_weights = _text(facts.get("low_weights")) or _text(facts.get("asked_low"))
    autocast = _text(facts.get("autocast_dtype"))
    if request.stage is StageName.FP32:
        return StagePolicy(request.stage, "float32", not (low_weights or autocast), False, Who.NOBODY, Who.NOBODY)
    if request.stage is StageName.FP16:
        if low_weights and not autocast:
            return StagePolicy(request.stage, low_weights, True, True, Who.SCRIPT, Who.SCRIPT)
        dtype = low_weights or autocast or request.plan.dtype
        return StagePolicy(request.stage, dtype, False, False, Who.NOBODY, Who.NOBODY, rounding=True)
    if autocast:
        outside = request.hold_scale and not facts.get("scaler_enabled")
        scaler = Who.NANPROBE if outside else Who.SCRIPT
        return StagePolicy(request.stage, autocast, True, True, Who.SCRIPT, scaler)
    dtype = low_weights or request.plan.dtype
    # Where the script asks for no low precision by itself, a request for it follows the autocast put around the script
    # (`mask.to(scores.dtype)`), and is part of what the script would compute under it.
    follows = not (low_weights or facts.get("asked_low"))
    narrow = bool(facts.get(NARROW_AUTOCAST))
    return StagePolicy(request.stage, dtype, False, follows, Who.NANPROBE, _scaler_around(facts, dtype), narrow=narrow)


def _scaler_around(facts: dict[str, object], dtype: str) -> Who:
    if facts.get("scaler_enabled"):
        return Who.SCRIPT
    # bf16 has FP32's range and needs no scale; FP32 master copies in the script mean that it scales by itself, and a
    # second scale on top of that would only overflow.
    if dtype == "bfloat16" or facts.get("masters"):
        return Who.NOBODY
    return Who.NANPROBE


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None

"""What a program does without nanprobe's watch: run plainly, in FP32 and as it would be run in low precision.

Only the arithmetic is nanprobe's (`nanprobe.precision`, which is tested against CUDA's lists); the verdict comes from
looking at the loss, the gradients and the weights directly.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fuzz.programs import Program
from fuzz.rendering import render
from nanprobe.precision import HalfComputeMode, cuda_autocast_on_cpu

# A gradient this much smaller than the largest is rounding noise, as that of a bias before a norm: our choice.
NOISE = 1e-5
# A loss this many times above its start belongs to a run that diverges: our choice.
GROWN = 100.0


@dataclass
class Course:
    """What happened in a plain run; steps are counted in backward passes."""

    bad_loss: int | None = None  # the first backward pass from a loss that is not finite
    bad_gradient: int | None = None
    bad_weights: int | None = None
    bad_gradients: int = 0  # backward passes that left a gradient that is not finite
    hits: list[int] = field(default_factory=list)  # backward passes before which the fault's result was not finite
    gradients: list[dict[str, Tensor]] = field(default_factory=list)  # of each backward pass, unscaled
    passes: int = 0
    losses: list[float] = field(default_factory=list)
    error: str | None = None  # the exception that ended it
    last_dead: frozenset[str] = frozenset()  # parameters whose gradient is exactly 0 in the last pass
    still_fraction: float = 0.0  # share of elements with a gradient that the first update left as they were

    @property
    def poisoned(self) -> bool:
        """The loss or the weights went wrong, or the script failed."""
        return self.bad_loss is not None or self.bad_weights is not None or self.error is not None

    @property
    def grown(self) -> bool:
        """The loss left the range in which a training means something."""
        return max(self.losses, default=0.0) > GROWN * max(1.0, min(self.losses[:2], default=1.0))

    @property
    def wrong(self) -> bool:
        """Something was not finite."""
        return self.poisoned or self.bad_gradient is not None


class Witness:
    """Looks at a script's numbers where the script calls it."""

    def __init__(self) -> None:
        self.course = Course()
        self._weights: dict[str, Tensor] = {}
        self._updated = False

    def fault(self, result: Tensor) -> None:
        """The fault's lines have run."""
        if not torch.isfinite(result).all():
            self.course.hits.append(self.course.passes)

    def backward(self, model: Any, loss: Tensor, scale: float) -> None:
        """A backward pass is done."""
        course = self.course
        here = course.passes
        course.passes += 1
        course.losses.append(abs(float(loss)))
        if course.bad_loss is None and not torch.isfinite(loss).all():
            course.bad_loss = here
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        if any(not torch.isfinite(g).all() for g in grads.values()):
            course.bad_gradient = here if course.bad_gradient is None else course.bad_gradient
            course.bad_gradients += 1
        course.last_dead = frozenset(name for name, g in grads.items() if not g.any())
        course.gradients.append({name: g.detach().clone().double() / scale for name, g in grads.items()})
        if here == 0:
            self._weights = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: Any) -> None:
        """An optimizer may have stepped."""
        course = self.course
        if course.bad_weights is None and any(not torch.isfinite(p).all() for p in model.parameters()):
            course.bad_weights = course.passes - 1
        now = dict(model.named_parameters())
        moved = {name: now[name] != w for name, w in self._weights.items()}
        if not self._updated and any(m.any() for m in moved.values()):
            self._updated = True
            meant = {name: g != 0 for name, g in course.gradients[0].items()}
            total = sum(int(m.sum()) for m in meant.values())
            still = sum(int((m & ~moved[name]).sum()) for name, m in meant.items())
            course.still_fraction = still / max(1, total)


def run_plain(program: Program) -> Course:
    """Run a program with nobody watching but the witness."""
    witness = Witness()
    script = render(replace(program, form="script"), witnessed=True)
    torch.manual_seed(0)
    with warnings.catch_warnings(), _arithmetic(program):
        warnings.simplefilter("ignore")
        try:
            exec(compile(script.source, "oracle", "exec"), {"__name__": "__main__", "WITNESS": witness})
        except (RuntimeError, ValueError, IndexError, AssertionError) as error:
            witness.course.error = f"{type(error).__name__}: {error}"
    if not witness._updated and witness.course.passes:
        witness.course.still_fraction = 1.0
    return witness.course


@contextlib.contextmanager
def _arithmetic(program: Program) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if program.precision in ("amp", "bf16"):
            stack.enter_context(cuda_autocast_on_cpu())
        if program.precision in ("half", "masters"):
            stack.enter_context(HalfComputeMode())
        yield


def in_full(program: Program) -> Program:
    """The program with every choice of precision taken out."""
    return replace(program, precision="fp32")


def in_low(program: Program) -> Program:
    """The program as it meets low precision: as written, else with AMP put around it."""
    if program.precision != "fp32":
        return program
    return replace(program, precision="amp", scaler=True, init_scale=65536.0)


def lost_norm(full: Course, low: Course) -> float:
    """The largest share of a parameter's first gradient that FP32 has and low precision has not."""
    pairs = _signals(full, low, 0)
    return max((float(g[h == 0].norm() / g.norm()) for g, h in pairs), default=0.0)


def gradient_error(full: Course, low: Course, number: int) -> float | None:
    """How far the gradients of a backward pass are from FP32's, as a share of their norm, in the worst parameter.

    None where they are not finite.
    """
    pairs = _signals(full, low, number)
    if any(not torch.isfinite(h).all() for _, h in pairs):
        return None
    return max((float((g - h).norm() / g.norm()) for g, h in pairs), default=0.0)


def _signals(full: Course, low: Course, number: int) -> list[tuple[Tensor, Tensor]]:
    """The gradients of one backward pass in both runs, without those that are rounding noise."""
    if number >= min(len(full.gradients), len(low.gradients)):
        return []
    there, here = full.gradients[number], low.gradients[number]
    largest = max((float(g.norm()) for g in there.values()), default=0.0)
    return [(g, here[name]) for name, g in there.items() if name in here and float(g.norm()) > NOISE * largest]

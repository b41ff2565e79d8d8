"""Random programs: hypothesis strategies, one for each kind of fault and one for sound programs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from fuzz.faults import FAULTS, Fault
from fuzz.layers import ACTIVATIONS, kinds_for
from fuzz.loops import OPTIMIZERS
from fuzz.programs import Layer, Program

CHOICES: dict[str, tuple[Any, ...]] = {
    "shape": ("vectors", "tokens", "sequences", "images"),
    "width": (4, 8, 12),
    "task": ("regression", "classification", "multilabel"),
    "optimizer": tuple(OPTIMIZERS),
    "precision": ("fp32", "amp", "bf16", "half", "masters"),
    "init_scale": (16.0, 1024.0, 65536.0),
    "scaler": (True, True, True, False),
    "accumulation": (1, 1, 1, 2, 3),
    "clip": (None, "norm", "value"),
    "data": ("list", "loader", "shuffled", "rows"),
    "form": ("script", "script", "contract"),
    "batch": (2, 4, 6),
    "steps": (4, 5, 6),
    "seed": tuple(range(1000)),
}


@st.composite
def programs(draw: st.DrawFn, kind: str | None = None) -> Program:
    """A program with a fault of this kind; a sound one for None."""
    needs = FAULTS[kind].needs if kind is not None else {}
    chosen: dict[str, Any] = {name: draw(st.sampled_from(needs.get(name, values))) for name, values in CHOICES.items()}
    if chosen["form"] == "contract" and _needs_a_loop(needs):
        chosen["form"] = "script"
    if chosen["form"] == "contract":
        chosen.update(precision="fp32", accumulation=1, clip=None)
    layer = st.builds(
        Layer, st.sampled_from(kinds_for(chosen["shape"])), st.sampled_from(needs.get("activation", ACTIVATIONS))
    )
    layers = tuple(draw(st.lists(layer, min_size=1, max_size=4)))
    fault = draw(faults(kind, len(layers), chosen)) if kind is not None else None
    return Program(layers=layers, fault=fault, **chosen)


def _needs_a_loop(needs: Any) -> bool:
    """Whether a fault asks for what nanprobe's own loop does not do."""
    ruled_out = {"precision": "fp32", "accumulation": 1, "clip": None}
    return any(name in needs and plain not in needs[name] for name, plain in ruled_out.items())


@st.composite
def faults(draw: st.DrawFn, kind: str, layers: int, chosen: dict[str, Any]) -> Fault:
    """A fault somewhere in a program of so many layers."""
    about = FAULTS[kind]
    # Not in the last step but one of them: an update that goes wrong at the very end is seen in nothing that follows.
    latest = chosen["steps"] - 2 if about.gated else 0
    return Fault(
        kind,
        after=draw(st.integers(0, layers)),
        step=draw(st.integers(0, latest)),
        row=draw(st.integers(0, chosen["batch"] - 1)),
        bits=draw(st.sampled_from((16, 18, 20, 22, 24))),
        column=draw(st.integers(0, 3)),
    )

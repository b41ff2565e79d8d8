"""Puts interventions in for the length of a run, and takes every patch and hook back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from torch.nn import Module
from typing_extensions import assert_never

from nanprobe.interventions import (
    ClipGradients,
    DropRows,
    EditedFile,
    Intervention,
    Islands,
    MasterWeights,
    RaiseEps,
    ScaleRate,
    WarmUp,
)
from nanprobe.patching import Patches
from nanprobe.treatment.islands import IslandWatch
from nanprobe.treatment.optimizers import OptimizerWatch, clip, keep_masters, raise_eps, scale_rate, warm_up
from nanprobe.treatment.rows import RowFilter


@contextmanager
def treat(
    interventions: Sequence[Intervention], name_module: Callable[[Module], str], device: str
) -> Iterator[dict[str, object]]:
    """While active, the interventions hold. What they saw is in the dictionary afterwards, by name.

    Args:
        name_module: gives a module's path once its root has been called.
        device: "cpu" or "cuda", where autocast is at work.
    """
    patches, seen = Patches(), dict[str, object]()
    optimizers = OptimizerWatch()
    watches: list[IslandWatch | RowFilter] = []
    for intervention in interventions:
        if isinstance(intervention, Islands):
            watches.append(IslandWatch(intervention.modules, name_module, device))
        elif isinstance(intervention, DropRows):
            watches.append(RowFilter(intervention, patches))
        elif isinstance(intervention, MasterWeights):
            optimizers.add(keep_masters)
        elif isinstance(intervention, ClipGradients):
            optimizers.add(clip(intervention.max_norm))
        elif isinstance(intervention, ScaleRate):
            optimizers.add(scale_rate(intervention.factor))
        elif isinstance(intervention, WarmUp):
            optimizers.add(warm_up(intervention.updates))
        elif isinstance(intervention, RaiseEps):
            optimizers.add(raise_eps(intervention.eps))
        elif not isinstance(intervention, EditedFile):  # those are served before the script is read
            assert_never(intervention)
    optimizers.install(patches)
    try:
        yield seen
    finally:
        for watch in watches:
            watch.stop()
            seen.update(watch.seen())
        patches.undo()

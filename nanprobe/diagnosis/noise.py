"""Gradients that are zero but for rounding: what FP16 makes of them says nothing.

The bias of an attention key, or of a layer before a normalisation, has a gradient that cancels exactly. FP32 leaves
rounding noise there, which FP64 shows to be noise; FP16 flushes it, rightly.
"""

from __future__ import annotations

from dataclasses import replace

from nanprobe.records import DeepStep, GradRecord, RunRecord, StageName, StageTrace

# An FP32 gradient is right to about 1e-6; one that is off by more than this against FP64 holds no signal. Our choice.
NOISE = 0.1


def without_noise(run: RunRecord) -> RunRecord:
    """The run without the finite gradients of parameters whose gradient the fp32 stage shows to be rounding noise."""
    names = noisy_parameters(run)
    if not names:
        return run
    return replace(run, stages=tuple(_strip(trace, names) for trace in run.stages))


def noisy_parameters(run: RunRecord) -> frozenset[str]:
    """Parameters whose FP32 gradient disagreed with FP64 in every deep step of the fp32 stage."""
    fp32 = next((t for t in run.stages if t.name is StageName.FP32), None)
    return noisy_gradients(fp32) if fp32 is not None else frozenset()


def noisy_gradients(fp32: StageTrace) -> frozenset[str]:
    """The same of the fp32 stage alone."""
    grads = [g for deep in fp32.deep_steps for g in deep.grads]
    noisy = {g.name for g in grads if _is_noise(g)}
    clean = {g.name for g in grads if g.relative_error is not None and g.relative_error <= NOISE}
    return frozenset(noisy - clean)


def _is_noise(grad: GradRecord) -> bool:
    """Whether FP64 disagrees, also where FP32 happens to be exactly 0; where both are 0 there is nothing to flush."""
    return grad.stats.abs_max > 0.0 if grad.relative_error is None else grad.relative_error > NOISE


def _strip(trace: StageTrace, names: frozenset[str]) -> StageTrace:
    if trace.name is StageName.FP32:
        return trace
    return replace(trace, deep_steps=tuple(_strip_step(deep, names) for deep in trace.deep_steps))


def _strip_step(deep: DeepStep, names: frozenset[str]) -> DeepStep:
    kept = tuple(g for g in deep.grads if g.name not in names or g.stats.nan_count or g.stats.inf_count)
    return replace(deep, grads=kept)

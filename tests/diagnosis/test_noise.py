"""A gradient that FP64 shows to be rounding noise is not accused of being flushed."""

from __future__ import annotations

import pytest

from builders import Step, half_step, run, stats, trace
from nanprobe.diagnosis import diagnose
from nanprobe.diagnosis.noise import noisy_parameters
from nanprobe.records import RunRecord, StageName


def key_bias_run(error: float) -> RunRecord:
    """A gradient that amp flushes whole; `error` is FP32's against FP64."""
    wide = Step(0)
    made = wide.op("aten.sum.dim_IntList")
    wide.grad("attn.key.bias", made, made_of=stats(peak=1e-10), relative_error=error)
    half = half_step(0)
    made = half.op("aten._to_copy.default", out=stats(dtype="float16", peak=0.0, shadow_peak=1e-10, flushed=4))
    half.grad("attn.key.bias", made, lost=1.0)
    return run(trace(StageName.FP32, wide), trace(StageName.AMP, half))


@pytest.mark.parametrize(("error", "noisy"), [(3.0, True), (1e-6, False)])
def test_what_fp64_shows_to_be_noise(error: float, noisy: bool) -> None:
    found = key_bias_run(error)
    assert (noisy_parameters(found) == {"attn.key.bias"}) is noisy
    assert any(f.code == "NP201" for f in diagnose(found).findings) is not noisy

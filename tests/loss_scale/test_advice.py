"""The advice and the status: the cases known from practice, each with a near miss."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loss_scale import sweeps
from nanprobe.errors import UsageError
from nanprobe.findings import Status
from nanprobe.formats import FP16
from nanprobe.loss_scale.advice import Pressure, advise, choose_init_scale
from nanprobe.loss_scale.analysis import analyse_sweep, judge
from nanprobe.loss_scale.histograms import histogram_of
from nanprobe.loss_scale.policies import PYTORCH
from nanprobe.loss_scale.result import ScalerHistory
from nanprobe.loss_scale.window import Window

FEW = {"extended_steps": 2000, "resamples": 2}
CALM = Pressure(PYTORCH, 0, 2.0**16, 2.0**16, 0.0)


def test_a_transformer_that_falls_to_8192_starts_lower_and_grows_less_often() -> None:
    result = sweeps.transformer()
    assert result.status is Status.HEALTHY and result.advice is not None and result.window is not None
    assert result.window.highest_scale == 8192.0
    assert result.advice.init_scale is not None and result.advice.init_scale <= 2.0**14
    assert result.advice.growth_interval == 5000
    assert "2^16 to 2^13" in result.advice.why
    by_name = {outcome.policy.name: outcome for outcome in result.policies}
    assert next(iter(by_name)) == "this script" and len(by_name) == 7
    assert by_name["this script"].recorded.skipped_steps == 3
    assert all(confirmation.agrees for confirmation in result.confirmations)


def test_the_line_to_paste_is_python_and_makes_that_scaler() -> None:
    advice = sweeps.transformer().advice
    assert advice is not None and advice.code is not None
    names: dict[str, torch.amp.GradScaler] = {}
    exec(advice.code.replace('"cuda"', '"cpu"'), {"torch": torch}, names)
    assert names["scaler"].get_scale() == advice.init_scale
    assert names["scaler"].get_growth_interval() == advice.growth_interval


@given(low=st.integers(0, 32), bits=st.integers(0, 32))
def test_the_initial_scale_lies_in_the_window(low: int, bits: int) -> None:
    window = Window(2.0**low, 2.0 ** min(low + bits, 32), "a", "b")
    scale = choose_init_scale(window)
    assert window.contains(scale) and math.log2(scale).is_integer()
    if bits >= 4 and low <= 28:
        assert scale <= 2.0 ** (min(low + bits, 32) - 2)


@pytest.mark.parametrize(
    ("window", "pressure", "init", "interval"),
    [
        (Window(1.0, 2.0**24, None, "head"), CALM, 2.0**16, 2000),
        (Window(2.0**13, 2.0**16, "stem", "head"), CALM, 2.0**14, 1000),  # little room below
        (Window(2.0**12, 2.0**16, "stem", "head"), CALM, 2.0**14, 2000),
        (Window(1.0, 2.0**13, None, "head"), replace(CALM, overflows=2), 2.0**11, 5000),
        (Window(1.0, 2.0**13, None, "head"), replace(CALM, overflows=1), 2.0**11, 2000),
        (Window(1.0, 2.0**13, None, "head"), replace(CALM, spread_bits=2.0), 2.0**11, 5000),
        (Window(2.0**20, 2.0**32, "stem", None), CALM, 2.0**22, 2000),
    ],
)
def test_the_rules(window: Window, pressure: Pressure, init: float, interval: int) -> None:
    advice = advise(window, pressure, FP16, 50)
    assert (advice.init_scale, advice.growth_interval) == (init, interval)


def test_an_interval_that_is_long_already_is_made_longer() -> None:
    pressure = Pressure(replace(PYTORCH, growth_interval=5000), 3, 2.0**16, 2.0**13, 0.0)
    assert advise(Window(1.0, 2.0**13, None, "head"), pressure, FP16, 50).growth_interval == 10_000


def test_no_safe_scale_names_both_layers_and_what_to_do() -> None:
    result = sweeps.conflicting()
    assert result.status is Status.FAILING and result.advice is not None
    told = "no safe scale: layer head.[red]scores[/red] overflows from 2^13, layer backbone.stem needs 2^16"
    assert result.reasons == (told,)
    assert result.advice.init_scale == 2.0**12  # skips no step, at a price that is told
    assert "costs backbone.stem" in result.advice.why
    remedies = " | ".join(result.advice.remedies)
    assert "run head.[red]scores[/red] in FP32" in remedies and "is safe without it" in remedies
    assert "10× smaller" in remedies and "bfloat16" in remedies


def test_one_layer_at_both_ends_is_advised_once() -> None:
    values = [3e4, *[1e-9 * (1 + i / 5000) for i in range(5000)]]
    wide = [
        histogram_of(values, name="w", layer="pooler"),
        histogram_of([1e-10] * 4, name="out", layer="pooler", kind="activation"),
    ]
    result = analyse_sweep(sweeps.run(), wide, **FEW)
    assert result.status is Status.FAILING and result.advice is not None
    assert len(result.advice.remedies) == len(set(result.advice.remedies)) == 2


def test_a_long_tail_is_no_conflict() -> None:
    result = sweeps.wide_tensor()
    assert result.status is Status.HEALTHY


def test_bfloat16_needs_no_scale() -> None:
    advice = sweeps.bfloat16().advice
    assert advice is not None and advice.code is None and advice.init_scale == 1.0


@pytest.mark.parametrize(
    ("scales", "skipped", "status"),
    [
        ([65536.0, 8192.0, 8192.0], [True, False, False], Status.HEALTHY),  # calibration
        ([65536.0, 32768.0, 16384.0], [True, True, True], Status.FAILING),  # still outside
        ([1.0, 1.0, 1.0], [False] * 3, Status.FAILING),  # gradients lost
        ([], [], Status.HEALTHY),
    ],
)
def test_the_status_follows_the_scripts_own_scaler(scales: list[float], skipped: list[bool], status: Status) -> None:
    window = Window(16.0, 8192.0, "stem", "head")
    assert judge(window, FP16, ScalerHistory(PYTORCH, tuple(scales), tuple(skipped)))[0] is status


@pytest.mark.parametrize(
    ("values", "word"), [(None, "autocast"), ([0.0, 0.0], "exactly zero"), ([1.0, math.nan], "not finite")]
)
def test_what_cannot_be_judged_is_inconclusive_and_says_what_to_do(values: list[float] | None, word: str) -> None:
    histograms = [] if values is None else [histogram_of(values, name="w", layer="fc")]
    result = analyse_sweep(sweeps.run(), histograms, **FEW)
    assert result.status is Status.INCONCLUSIVE and result.window is None
    assert word in result.reasons[0] and "nanprobe diagnose" in result.reasons[0]


def test_an_unknown_number_format_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown float format"):
        analyse_sweep(sweeps.run(), [], number_format="fp12")


def test_the_same_seed_gives_the_same_answer() -> None:
    assert sweeps.conflicting() == sweeps.conflicting()

"""What the histograms of a run say of ten loss scales, beside ten real runs: three models, one step each.

FP16 is wide enough for these small models, so a small loss shows the flushes and a large one the overflows.

The overflow verdict has to be equal. Flushed elements may differ by `TOLERANCE` of all elements, for three reasons that
lie in what is compared, not in the count: a gradient that is flushed on its way down makes those below it smaller or
zero, which a run without any rounding does not show; each rounding on the way moves an element by up to 2^-11 of
itself (and far more below 2^-14), so that one next to the threshold may fall on its other side; and pointwise
operations between two products round in FP16 in the real run, and do not in the recorded one. Where more than `FEW` of
the elements are flushed, whole gradients vanish on their way and take those below with them: then the count is close
to a lower bound, which says the same, that the scale is too low.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanprobe.formats import FP16
from nanprobe.loss_scale.histograms import PARAMETER, ExponentHistogram
from nanprobe.loss_scale.outcomes import predict_outcomes
from nanprobe.precision import cuda_autocast_on_cpu
from nanprobe.precision.gradient_taps import tapped_autocast
from nanprobe.probe.exponents import GradientSweep

TOLERANCE, FEW = 0.01, 0.05
RECORDED_AT = 2.0**12
SMALL_LOSS, LARGE_LOSS = 2.0**-16, 2.0**2  # factors of the loss
FLUSHING = (0, 2, 4, 6, 8, 10)  # exponents of scales at which a small loss loses gradients
AROUND_OVERFLOW = (-2, -1, 0, 1)  # from the first that overflows


@dataclass
class Case:
    """A model and a loss; built anew for every run, so that no run sees another's weights."""

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(32, 40)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))


def mlp() -> Case:
    model = nn.Sequential(nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 5))
    x, y = torch.randn(64, 20), torch.randn(64, 5)
    return Case(model, lambda model: F.mse_loss(model(x).float(), y))


def convolutions() -> Case:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 16, 10),
    )  # fmt: skip
    x, y = torch.randn(16, 3, 8, 8), torch.randint(0, 10, (16,))
    return Case(model, lambda model: F.cross_entropy(model(x), y))


def transformer() -> Case:
    tokens = torch.randint(0, 40, (8, 16))
    return Case(Transformer(), lambda model: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))


MODELS = {"mlp": mlp, "convolutions": convolutions, "transformer": transformer}


def build(name: str) -> Case:
    torch.manual_seed(0)
    return MODELS[name]()


def record(name: str, factor: float) -> list[ExponentHistogram]:
    """One step, unrounded gradients, a histogram at each tap."""
    case = build(name)
    names = {id(p): n for n, p in case.model.named_parameters()}
    sweep = GradientSweep("float16", lambda: "model", lambda tensor: names.get(id(tensor)))
    with tapped_autocast(sweep.taps, "cpu"):
        with torch.autocast("cpu", torch.float16):
            loss = case.loss(case.model)
        sweep.before_backward(RECORDED_AT)
        (loss * factor * RECORDED_AT).backward()
        return sweep.after_backward(0)


def run_for_real(name: str, scale: float) -> dict[str, Tensor]:
    """One step as FP16 has it; the gradients with the scale in them."""
    case = build(name)
    with cuda_autocast_on_cpu():
        with torch.autocast("cpu", torch.float16):
            loss = case.loss(case.model)
        (loss * scale).backward()
    return {n: p.grad for n, p in case.model.named_parameters()}


def is_finite(gradients: dict[str, Tensor]) -> bool:
    return all(bool(g.isfinite().all()) for g in gradients.values())


@pytest.mark.parametrize("name", MODELS)
def test_flushed_elements_are_those_of_six_real_runs(name):
    histograms = record(name, SMALL_LOSS)
    weights = [h for h in histograms if h.kind == PARAMETER]
    assert not any(row.overflowing_tensors for row in predict_outcomes(histograms, FP16).scale_rows()[:25])
    rows, total = predict_outcomes(weights, FP16).scale_rows(), sum(h.numel for h in weights)
    for exponent in FLUSHING:
        gradients = run_for_real(name, SMALL_LOSS * 2.0**exponent)
        assert is_finite(gradients), f"2^{exponent}"
        flushed = sum(int((gradients[h.name] == 0).sum()) - h.zeros for h in weights)
        predicted = rows[exponent].flushed_elements
        message = f"2^{exponent}: {flushed} of {total}, not {predicted}"
        if predicted <= FEW * total:
            assert abs(flushed - predicted) <= TOLERANCE * total, message
        else:
            assert flushed >= 0.9 * predicted, message
    assert rows[0].flushed_fraction > FEW, "the scales are to begin where much is lost"
    assert rows[FLUSHING[-1]].flushed_fraction < TOLERANCE, "and to end where little is"


@pytest.mark.parametrize("name", MODELS)
def test_the_overflow_verdict_is_that_of_four_real_runs(name):
    rows = predict_outcomes(record(name, LARGE_LOSS), FP16).scale_rows()
    first = next(exponent for exponent, row in enumerate(rows) if row.overflowing_tensors)
    assert first + AROUND_OVERFLOW[0] > 0 and first + AROUND_OVERFLOW[-1] <= 24
    for exponent in (first + more for more in AROUND_OVERFLOW):
        overflows = not is_finite(run_for_real(name, LARGE_LOSS * 2.0**exponent))
        assert overflows == bool(rows[exponent].overflowing_tensors), f"2^{exponent}"

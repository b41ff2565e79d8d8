"""Taps: CUDA's autocast forward, unrounded gradients backward, and one look at each tensor that would be FP16."""

from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nanprobe.precision import cuda_autocast_on_cpu
from nanprobe.precision.gradient_taps import GradientTaps, tapped_autocast

HALF_ULP = 2.0**-11  # of FP16, relative: what one rounding may change


class Seen:
    """Collects what passes: (op, role, leaf or not) forward, the same with the gradient backward."""

    def __init__(self):
        self.forward, self.backward = [], []

    def describe(self, op, role, tensor):
        key = (op, role, tensor if tensor.is_leaf else None)
        self.forward.append(key)
        return key

    def look(self, key, gradient):
        self.backward.append((key, gradient.clone()))

    def gradients_of(self, leaf):
        return [gradient for (_, _, tensor), gradient in self.backward if tensor is leaf]


@contextmanager
def taps():
    seen = Seen()
    with tapped_autocast(GradientTaps(seen.describe, seen.look), "cpu"):
        yield seen


def autocast(**options):
    return torch.autocast("cpu", torch.float16, **options)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)), torch.randn(8, 16)


def convolutions():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 4))
    return model, torch.randn(4, 3, 6, 6)


def encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(2, 5, 16)


def recurrent():
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 12), nn.Linear(12, 3)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

    return Model(), torch.randn(5, 2, 8)


@pytest.mark.parametrize("build", [mlp, convolutions, encoder, recurrent])
def test_forward_values_are_those_of_autocast(build):
    model, x = build()
    with taps(), autocast():
        found = model(x)
    model, x = build()
    with cuda_autocast_on_cpu(), autocast():
        expected = model(x)
    assert found.dtype is torch.float32
    # Pointwise operations between the products are not rounded here: a few roundings apart, of the largest value.
    assert (found - expected.float()).abs().max() <= 8 * HALF_ULP * expected.float().abs().max()


def test_a_single_product_is_the_same_to_the_last_bit():
    model, x = nn.Linear(16, 32), torch.randn(8, 16)
    with taps(), autocast():
        found = model(x)
    with cuda_autocast_on_cpu(), autocast():
        assert torch.equal(found, model(x).float())


@pytest.mark.parametrize("build", [mlp, convolutions, encoder, recurrent])
def test_backward_is_not_rounded(build):
    """Gradients far below FP16's smallest number arrive, and are in proportion to the loss."""
    gradients = []
    for scale in (1.0, 2.0**-40):
        model, x = build()
        with taps() as seen, autocast():
            loss = model(x).float().pow(2).mean()
        (loss * scale).backward()
        assert seen.backward
        gradients.append([p.grad / scale for p in model.parameters()])
        assert all(g.dtype is torch.float32 for g in gradients[-1])
    assert max(float((g * 2.0**-40).abs().max()) for g in gradients[1]) < 2.0**-25
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_every_half_tensor_of_a_layer_is_looked_at_once():
    model, x = mlp()
    with taps() as seen:
        with autocast():
            loss = model(x).float().pow(2).mean()
        loss.backward()
    kinds = sorted((op, role, leaf is not None) for (op, role, leaf), _ in seen.backward)
    # Of the first layer the input needs no gradient. Weights and biases are cast, and so are inputs of the second.
    assert kinds == sorted(
        [("aten.linear", "input", True)] * 4
        + [("aten.linear", "output", False)] * 2
        + [("aten.linear", "input", False)]
    )
    for p in model.parameters():
        (gradient,) = seen.gradients_of(p)
        assert torch.equal(gradient, p.grad)


def test_tied_weights_are_seen_once_with_the_gradients_of_all_uses():
    table, tokens = nn.Parameter(torch.randn(10, 6)), torch.tensor([[1, 2, 3]])
    with taps() as seen:
        with autocast():
            h = F.linear(F.linear(torch.randn(3, 6), table), table.t())
            loss = F.linear(h, table).float().pow(2).mean() + F.embedding(tokens, table).sum() * 0
        loss.backward()
    (gradient,) = seen.gradients_of(table)
    assert gradient.shape == table.shape
    assert [key for key in seen.forward if key[2] is table] == [("aten.linear", "input", table)]


def test_a_weight_is_cast_anew_after_autocast_was_left():
    model, x = mlp()
    with taps() as seen:
        for _ in range(2):
            with autocast():
                loss = model(x).float().pow(2).mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(2)
    assert len(seen.gradients_of(model[0].weight)) == 2
    first, second = seen.gradients_of(model[0].weight)
    assert not torch.equal(first, second)


def test_no_grad_leaves_no_tap_and_a_weight_cast_there_is_trained_all_the_same():
    model, x = mlp()
    with taps() as seen:
        with autocast():
            with torch.no_grad():
                model(x)
            assert [leaf is not None for _, _, leaf in seen.forward] == [True] * 4, "only weights, for later uses"
            loss = model(x).float().pow(2).mean()
        loss.backward()
    for p in model.parameters():
        assert len(seen.gradients_of(p)) == 1
        assert p.grad is not None


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointing_gives_the_same_gradients_and_looks(use_reentrant):
    def run(checkpointed):
        model, x = mlp()
        head = nn.Linear(4, 4)
        nn.init.eye_(head.weight)
        with taps() as seen:
            with autocast():
                x = x.requires_grad_()
                h = checkpoint(model, x, use_reentrant=use_reentrant) if checkpointed else model(x)
                loss = head(h).float().pow(2).mean()
            loss.backward()
        looks = sorted((op, role, leaf is not None) for (op, role, leaf), _ in seen.backward)
        return [p.grad for p in model.parameters()], looks

    (plain, looks), (again, more) = run(False), run(True)
    for one, other in zip(plain, again, strict=True):
        assert torch.equal(one, other)
    assert more == looks


def test_what_autocast_leaves_alone_is_left_alone():
    weight = nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    with taps() as seen:
        with autocast():
            double = torch.randn(2, 4, dtype=torch.float64) @ weight
        with autocast(enabled=False):
            plain = torch.randn(2, 4) @ nn.Parameter(torch.randn(4, 4))
        outside = torch.randn(2, 4) @ nn.Parameter(torch.randn(4, 4))
    assert double.dtype is torch.float64
    assert plain.dtype is outside.dtype is torch.float32
    assert seen.forward == []


def test_bfloat16_rounds_to_its_own_grid():
    x, weight = torch.randn(3, 4), nn.Parameter(torch.randn(4, 4))
    with taps(), torch.autocast("cpu", torch.bfloat16):
        found = x @ weight
    assert torch.equal(found, found.bfloat16().float())


def test_nothing_is_left_registered_even_after_an_error():
    before = tuple(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU"))
    clear = torch.clear_autocast_cache
    with pytest.raises(ZeroDivisionError), taps():
        raise ZeroDivisionError
    assert tuple(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")) == before
    assert torch.clear_autocast_cache is clear
    x, weight = torch.randn(3, 4), nn.Parameter(torch.randn(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ weight).dtype is torch.bfloat16

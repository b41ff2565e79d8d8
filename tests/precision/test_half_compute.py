"""`HalfComputeMode`: half models on a CPU give FP32 results rounded to half, and train."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from nanprobe.precision import HalfComputeMode, cuda_autocast_on_cpu

NARROW = [torch.float16, torch.bfloat16]


class Backend(TorchDispatchMode):
    """Lists what reaches the backend, and in which dtypes. Enter it before the mode it is to look below."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, set[torch.dtype]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func._schema.name, {arg.dtype for arg in args if isinstance(arg, Tensor)}))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_products_are_fp32_inside_and_rounded_once(dtype: torch.dtype) -> None:
    a, b, c = (torch.randn(3, 4, 4).to(dtype) for _ in range(3))
    cases = [
        (torch.mm, (a[0], b[0])),
        (torch.addmm, (c[0], a[0], b[0])),
        (torch.bmm, (a, b)),
        (torch.baddbmm, (c, a, b)),
        (torch.addbmm, (c[0], a, b)),
        (torch.mv, (a[0], b[0, 0])),
        (torch.addmv, (c[0, 0], a[0], b[0, 0])),
        (torch.dot, (a[0, 0], b[0, 0])),
        (torch.vdot, (a[0, 0], b[0, 0])),
        (F.linear, (a, b[0], c[0, 0])),
        (F.conv1d, (a, b)),
    ]
    for function, args in cases:
        with HalfComputeMode():
            result = function(*args)
        assert result.dtype is dtype
        assert torch.equal(result, function(*(arg.float() for arg in args)).to(dtype)), function


def test_in_place_products_write_their_argument() -> None:
    a, b = torch.randn(4, 4).half(), torch.randn(4, 4).half()
    total = torch.ones(4, 4).half()
    expected = torch.addmm(total.float(), a.float(), b.float()).half()
    out = torch.empty(4, 4).half()
    with HalfComputeMode():
        assert total.addmm_(a, b) is total
        assert torch.mm(a, b, out=out) is out
    assert torch.equal(total, expected)
    assert torch.equal(out, (a.float() @ b.float()).half())


torch.manual_seed(0)  # the modules below are made on import
MODULES: list[tuple[str, nn.Module, tuple[int, ...]]] = [
    ("mlp", nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)), (5, 8)),
    ("conv", nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()), (2, 3, 8, 8)),
    ("conv_transpose", nn.ConvTranspose2d(3, 4, 3), (2, 3, 5, 5)),
    ("lstm", nn.LSTM(6, 5, num_layers=2, bidirectional=True), (3, 7, 6)),
    ("gru", nn.GRU(6, 5), (3, 7, 6)),
    ("rnn", nn.RNN(6, 5), (3, 7, 6)),
    ("lstm_cell", nn.LSTMCell(6, 5), (3, 6)),
    ("encoder", nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    ("group_norm", nn.GroupNorm(2, 4), (2, 4, 5)),
    ("instance_norm", nn.InstanceNorm1d(4, affine=True), (2, 4, 5)),
    ("avg_pool3d", nn.Sequential(nn.Conv3d(2, 2, 1), nn.AvgPool3d(2)), (1, 2, 4, 4, 4)),
    ("bilinear", nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear")), (2, 3, 4, 4)),
    ("bicubic", nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bicubic")), (2, 3, 4, 4)),
]


def outputs_and_gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    """What a module gives for `x`, and the gradients of its parameters."""
    module.zero_grad()
    result = module(x)
    result = result[0] if isinstance(result, tuple) else result
    weights = torch.linspace(-1, 1, result.numel()).view_as(result)
    (result.float() * weights).sum().backward()
    return [result.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize(("name", "module", "shape"), MODULES, ids=[name for name, _, _ in MODULES])
def test_half_modules_train_within_rounding_of_fp32(
    name: str, module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    module = module.to(dtype)
    x = torch.randn(shape).to(dtype)
    with HalfComputeMode():
        found = outputs_and_gradients(module, x)
    assert {tensor.dtype for tensor in found} == {dtype}
    expected = outputs_and_gradients(module.float(), x.float())
    for ours, theirs in zip(found, expected, strict=True):
        relative = torch.linalg.vector_norm(ours.float() - theirs) / theirs.norm().clamp_min(1e-2)
        assert relative < (1e-2 if dtype is torch.float16 else 1.5e-1)


@pytest.mark.parametrize("weights", [torch.float16, torch.float32], ids=str)
def test_batch_norm_keeps_running_statistics_and_dtypes(weights: torch.dtype) -> None:
    norm, reference = nn.BatchNorm1d(4).to(weights), nn.BatchNorm1d(4)
    x = (torch.randn(64, 4) * 3 + 1).half()
    with HalfComputeMode():
        y = norm(x)
        y.float().square().sum().backward()
    reference(x.float())
    assert y.dtype is torch.float16 and norm.weight.grad is not None and norm.weight.grad.dtype is weights
    assert norm.running_mean is not None and norm.running_mean.dtype is weights
    torch.testing.assert_close(norm.running_mean.float(), reference.running_mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(norm.running_var.float(), reference.running_var, rtol=1e-3, atol=1e-3)
    with HalfComputeMode():
        assert norm.eval()(x).dtype is torch.float16


LABELS = torch.tensor([0, 1, 2])
LOSSES = {
    "cross_entropy": lambda x: F.cross_entropy(x, LABELS),
    "nll": lambda x: F.nll_loss(F.log_softmax(x, -1), LABELS),
    "mse": lambda x: F.mse_loss(x, torch.zeros_like(x)),
    "bce": lambda x: F.binary_cross_entropy(x.sigmoid(), torch.zeros_like(x)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x)),
    "multi_margin": lambda x: F.multi_margin_loss(x, LABELS),
    "multilabel_margin": lambda x: F.multilabel_margin_loss(x, torch.zeros_like(x, dtype=torch.long)),
    "kl_div": lambda x: F.kl_div(x.log_softmax(-1), torch.full_like(x, 0.25), reduction="batchmean"),
    "ctc": lambda x: F.ctc_loss(x.log_softmax(-1)[:, None], torch.tensor([[1]]), torch.tensor([3]), torch.tensor([1])),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_losses_of_half_tensors(loss: Any) -> None:
    x = torch.randn(3, 4).half().requires_grad_()
    with HalfComputeMode():
        value = loss(x)
        (grad,) = torch.autograd.grad(value, x)
    x32 = x.detach().float().requires_grad_()
    reference = loss(x32)
    (reference_grad,) = torch.autograd.grad(reference, x32)
    assert value.dtype is grad.dtype is torch.float16
    torch.testing.assert_close(value.float(), reference, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(grad.float(), reference_grad, rtol=5e-3, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_sure_prediction_keeps_its_distance_to_0(dtype: torch.dtype) -> None:
    """A GPU subtracts the largest logit before it adds log(sum): -1.4e-5 at 35.875, where neighbours are 0.03 apart."""
    logits = torch.tensor([[35.875, 24.75, -20.0]]).to(dtype)
    with HalfComputeMode():
        found = F.log_softmax(logits, -1)
        loss = F.cross_entropy(logits, LABELS[:1])
    assert found.dtype is loss.dtype is dtype
    assert torch.equal(found, F.log_softmax(logits.float(), -1).to(dtype))
    assert loss > 0


def test_embeddings_train() -> None:
    embedding = nn.Embedding(5, 4).half()
    bag = nn.EmbeddingBag(5, 4).half()
    with HalfComputeMode():
        (embedding(LABELS).sum() + bag(LABELS[None]).sum()).backward()
    assert embedding.weight.grad is not None and embedding.weight.grad.sum() == 12
    assert bag.weight.grad is not None and bag.weight.grad.dtype is torch.float16


def test_an_operator_without_a_half_kernel_is_remembered() -> None:
    x = torch.randn(1, 2, 4, 4, 4).half()
    with pytest.raises(RuntimeError, match="not implemented for 'Half'"):
        F.avg_pool3d(x, 2)
    with Backend() as backend, HalfComputeMode():
        for _ in range(2):
            assert F.avg_pool3d(x, 2).dtype is torch.float16
    pools = [dtypes for name, dtypes in backend.seen if name == "aten::avg_pool3d"]
    assert pools == [{torch.float16}, {torch.float32}, {torch.float32}]


def test_mistakes_are_still_refused() -> None:
    half, full = torch.randn(2, 2).half(), torch.randn(2, 2)
    with HalfComputeMode():
        with pytest.raises(RuntimeError, match="dtype"):
            half @ full
        with pytest.raises(RuntimeError, match="shape"):
            half @ half[:1].t()[:1]


def test_fp32_is_left_alone() -> None:
    with Backend() as backend, HalfComputeMode():
        torch.randn(2, 2) @ torch.randn(2, 2)
    assert [name for name, _ in backend.seen] == ["aten::randn", "aten::randn", "aten::mm"]


def test_a_recorder_above_sees_half_tensors() -> None:
    x = torch.randn(2, 2).half()
    with HalfComputeMode(), Backend() as recorder:
        x @ x
    assert recorder.seen == [("aten::mm", {torch.float16})]


def test_it_works_together_with_autocast() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).half()
    with cuda_autocast_on_cpu(), HalfComputeMode(), torch.autocast("cpu", torch.float16):
        y = model(torch.randn(3, 8))
        with torch.autocast("cpu", enabled=False):
            z = y @ y.t()
        F.cross_entropy(z, LABELS).backward()
    assert y.dtype is z.dtype is torch.float16
    assert all(p.grad is not None and p.grad.dtype is torch.float16 for p in model.parameters())


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW"])
@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=["loop", "foreach", "fused"])
def test_optimizers_step_half_weights(name: str, options: dict[str, bool]) -> None:
    model = nn.Linear(4, 4).half()
    before = model.weight.detach().clone()
    with HalfComputeMode():
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
        model(torch.ones(2, 4).half()).sum().backward()
        optimizer.step()
    assert not torch.equal(model.weight, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_it_does_nothing_in_a_forked_process() -> None:
    seen = Backend()
    x = torch.ones(2, 2).half()
    with seen, HalfComputeMode():
        child = os.fork()
        if child == 0:
            x @ x
            os._exit(0 if seen.seen[-1] == ("aten::mm", {torch.float16}) else 1)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0

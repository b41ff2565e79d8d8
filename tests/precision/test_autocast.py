"""`cuda_autocast_on_cpu` gives CUDA's numbers, forward and backward, and leaves nothing behind."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch._dynamo  # checkpoint imports it, and it replaces torch.manual_seed: not in the middle of a test
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from nanprobe.precision import cuda_autocast_on_cpu, emulated_op
from nanprobe.precision.cast_lists import EXCEPTIONS, cpu_only_ops, cuda_entries, unlisted_cuda_ops

HALF = torch.float16


def half_autocast() -> torch.autocast:
    return torch.autocast("cpu", HALF)


def rounded(tensor: Tensor) -> Tensor:
    """FP32 numbers that FP16 can hold."""
    return tensor.to(HALF).float()


class Casts(TorchDispatchMode):
    """Lists the operations that reach the backend, with the operator they are an emulation of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((str(func), emulated_op()))
        return func(*args, **(kwargs or {}))

    def count(self, name: str) -> int:
        return sum(op.startswith(name) for op, _ in self.seen)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_linear_is_fp32_accumulation_of_fp16_inputs() -> None:
    linear, x = nn.Linear(64, 32), torch.randn(4, 64)
    with cuda_autocast_on_cpu(), half_autocast():
        y = linear(x)
    assert y.dtype is HALF
    assert torch.equal(y, F.linear(rounded(x), rounded(linear.weight), rounded(linear.bias)).to(HALF))


def test_linear_gradients_are_rounded_where_cudas_are() -> None:
    linear, x = nn.Linear(8, 4, bias=False), torch.randn(16, 8, requires_grad=True)
    grad_out = torch.randn(16, 4)
    with cuda_autocast_on_cpu(), half_autocast():
        y = linear(x)
    y.backward(grad_out.to(HALF))
    g = rounded(grad_out)
    assert x.grad is not None and linear.weight.grad is not None and linear.weight.grad.dtype is torch.float32
    assert torch.equal(x.grad, rounded(g @ rounded(linear.weight)))
    assert torch.equal(linear.weight.grad, rounded(g.T @ rounded(x)))


def test_gradients_overflow_and_flush_as_fp16_does() -> None:
    x = torch.ones(1, 1, requires_grad=True)
    weight = torch.tensor([[2.0]], requires_grad=True)
    with cuda_autocast_on_cpu(), half_autocast():
        y = F.linear(x, weight)
    (grad,) = torch.autograd.grad(y, x, torch.full_like(y, 60000.0), retain_graph=True)
    assert grad.item() == float("inf")
    weight.data.fill_(0.25)
    with cuda_autocast_on_cpu(), half_autocast():
        y = F.linear(x, weight)
    (grad,) = torch.autograd.grad(y, x, torch.full_like(y, 2.0**-24))
    assert grad.item() == 0.0


torch.manual_seed(0)  # the modules below are made on import
MODULES: list[tuple[str, nn.Module, tuple[Tensor, ...]]] = [
    ("mlp", nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (torch.randn(5, 8),)),
    (
        "conv",
        nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (torch.randn(2, 3, 8, 8),),
    ),
    ("same-padding", nn.Conv1d(3, 4, 3, padding="same"), (torch.randn(2, 3, 8),)),
    ("conv_transpose", nn.ConvTranspose2d(3, 4, 3), (torch.randn(2, 3, 5, 5),)),
    ("lstm", nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True), (torch.randn(3, 7, 6),)),
    ("lstm-projection", nn.LSTM(6, 5, proj_size=3), (torch.randn(3, 7, 6),)),
    ("gru", nn.GRU(6, 5), (torch.randn(3, 7, 6),)),
    ("rnn", nn.RNN(6, 5, nonlinearity="relu"), (torch.randn(3, 7, 6),)),
    ("lstm_cell", nn.LSTMCell(6, 5), (torch.randn(3, 6),)),
    ("gru_cell", nn.GRUCell(6, 5), (torch.randn(3, 6),)),
    ("attention", nn.MultiheadAttention(8, 2, batch_first=True), (torch.randn(2, 5, 8),) * 3),
    ("encoder", nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (torch.randn(2, 5, 8),)),
    ("group_norm", nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)), (torch.randn(2, 4, 5),)),
    (
        "upsample",
        nn.Sequential(nn.Conv2d(3, 4, 1), nn.Upsample(scale_factor=2, mode="bilinear")),
        (torch.randn(2, 3, 4, 4),),
    ),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize(("name", "module", "inputs"), MODULES, ids=[name for name, _, _ in MODULES])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_modules_train_within_rounding_of_fp32(
    name: str, module: nn.Module, inputs: tuple[Tensor, ...], dtype: torch.dtype
) -> None:
    def outputs_and_gradients() -> list[Tensor]:
        module.zero_grad()
        result = module(*inputs)
        result = result[0] if isinstance(result, tuple) else result
        weights = torch.linspace(-1, 1, result.numel()).view_as(result)
        (result.float() * weights).sum().backward()
        return [result.detach(), *(p.grad for p in module.parameters() if p.grad is not None)]

    expected = outputs_and_gradients()
    with cuda_autocast_on_cpu(), torch.autocast("cpu", dtype):
        found = outputs_and_gradients()
    for ours, theirs in zip(found, expected, strict=True):
        relative = torch.linalg.vector_norm(ours.float() - theirs) / theirs.norm().clamp_min(1e-2)
        assert relative < (1e-2 if dtype is HALF else 1.5e-1)


@pytest.mark.parametrize("layer", [nn.LSTM(6, 5), nn.GRU(6, 5), nn.RNN(6, 5)], ids=["lstm", "gru", "rnn"])
def test_recurrent_layers_give_half_packed_or_not(layer: nn.Module) -> None:
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(4, 3, 6), torch.tensor([4, 2, 1]))
    with cuda_autocast_on_cpu(), half_autocast():
        output, state = layer(torch.randn(4, 3, 6))
        packed_output, _ = layer(packed)
    states = state if isinstance(state, tuple) else (state,)
    assert {tensor.dtype for tensor in (output, packed_output.data, *states)} == {HALF}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.ones(6, 6).tril().bool()},
        {"attn_mask": torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -1e9)},
        {"scale": 0.5},
        {"dropout_p": 0.0, "is_causal": True},
    ],
    ids=["plain", "causal", "bool-mask", "float-mask", "scale", "no-dropout"],
)
def test_attention_with_every_kind_of_mask(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(2, 4, 6, 8, requires_grad=True) for _ in range(3))
    with cuda_autocast_on_cpu(), half_autocast():
        out = F.scaled_dot_product_attention(q, k, v, **options)
    assert out.dtype is HALF
    reference = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(out.float(), reference, rtol=5e-3, atol=5e-3)
    for ours, theirs in zip(
        torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(reference.sum(), (q, k, v)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-2)


def test_attention_with_dropout_and_grouped_queries() -> None:
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8)
    with cuda_autocast_on_cpu(), half_autocast():
        assert F.scaled_dot_product_attention(q, q, q, dropout_p=0.5).dtype is HALF
        assert F.scaled_dot_product_attention(q, k, k, enable_gqa=True).dtype is HALF


def test_a_chain_of_products_overflows_inside_as_on_cuda() -> None:
    big, small = torch.full((4, 4), 200.0), torch.full((4, 4), 1e-4)
    with cuda_autocast_on_cpu(), half_autocast():
        fits = torch.linalg.multi_dot([small, big, big])  # smallest first: the order is the same for square ones
        lost = torch.einsum("ij,jk,kl->il", big, big, small)
    assert lost.dtype is fits.dtype is HALF
    assert lost.isinf().all()  # 200 * 200 * 4 is above 65504, though the whole product is 64


def test_float64_and_integers_are_not_cast() -> None:
    x64, integers = torch.randn(2, 3, dtype=torch.float64), torch.ones(2, 2, dtype=torch.long)
    with cuda_autocast_on_cpu(), half_autocast():
        assert (x64 @ x64.T).dtype is torch.float64
        assert x64.sum().dtype is torch.float64
        assert x64.norm().dtype is torch.float64
        assert torch.exp(x64).dtype is torch.float64
        assert (integers @ integers).dtype is torch.long
        assert integers.sum().dtype is torch.long


def test_a_dtype_the_caller_asks_for_is_given() -> None:
    x = torch.randn(4, dtype=HALF)
    with cuda_autocast_on_cpu(), half_autocast():
        assert x.sum(dtype=HALF).dtype is HALF
        assert x.softmax(0, HALF).dtype is HALF
        assert x.softmax(0).dtype is torch.float32


def test_cross_entropy_of_a_sure_prediction_is_not_0() -> None:
    """Its log_softmax is FP16 on CUDA, rounded once: -1.4e-5 at a logit of 35.875, whose neighbours are 0.03 away."""
    logits = torch.tensor([[35.875, 24.75, -20.0]], dtype=HALF, requires_grad=True)
    with cuda_autocast_on_cpu(), half_autocast():
        with Casts() as casts:
            loss = F.cross_entropy(logits, torch.tensor([0]))
        asked = F.log_softmax(logits, -1, dtype=HALF)
    assert loss.dtype is torch.float32
    assert loss.item() == -F.log_softmax(logits.float(), -1).to(HALF)[0, 0].item() > 0.0
    assert ("aten._log_softmax.default", "aten.log_softmax") in casts.seen
    assert torch.equal(asked, F.log_softmax(logits.float(), -1).to(HALF))
    (grad,) = torch.autograd.grad(loss, logits, torch.tensor(4096.0))
    wide = logits.detach().float().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(wide, torch.tensor([0])), wide, torch.tensor(4096.0))
    assert grad.dtype is HALF
    torch.testing.assert_close(grad.float(), expected, rtol=2e-3, atol=2.0**-24)


def test_what_only_the_cpu_casts_passes_through() -> None:
    assert {"cat", "stack", "max_pool3d", "linalg_inv"} <= set(cpu_only_ops())
    x = torch.randn(1, 4, 4, dtype=HALF)
    with cuda_autocast_on_cpu(), half_autocast():
        assert F.pad(x, (1, 1), mode="reflect").dtype is HALF  # FP32 under the CPU's own autocast


def test_nothing_stays_registered() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4, dtype=HALF)

    def native() -> tuple[Any, ...]:
        clear = torch.clear_autocast_cache
        with half_autocast():
            values = (torch.exp(x).dtype, F.pad(x[None], (1, 1), mode="reflect").dtype, linear(x).dtype)
        registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
        return (*values, clear, torch.backends.mha.get_fastpath_enabled(), sorted(registered))

    before = native()
    with pytest.raises(KeyError), cuda_autocast_on_cpu(), cuda_autocast_on_cpu():
        raise KeyError
    assert native() == before
    assert before[:2] == (HALF, torch.float32)


def test_nested_use_ends_with_the_outermost() -> None:
    x = torch.randn(4, dtype=HALF)
    with cuda_autocast_on_cpu():
        with cuda_autocast_on_cpu():
            pass
        with half_autocast():
            assert torch.exp(x).dtype is torch.float32


def test_islands_without_autocast_are_left_alone() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with cuda_autocast_on_cpu(), half_autocast():
        with torch.autocast("cpu", enabled=False):
            assert linear(x).dtype is torch.float32
            assert torch.exp(x.half()).dtype is HALF
        assert linear(x).dtype is HALF
    with cuda_autocast_on_cpu():
        assert linear(x).dtype is torch.float32


def test_custom_functions_see_what_they_ask_for() -> None:
    seen: list[torch.dtype] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            seen.append((a @ b).dtype)
            return a @ b

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            a, b = ctx.saved_tensors
            seen.append((grad @ b.T).dtype)
            return grad @ b.T, a.T @ grad

    a = torch.randn(3, 3, dtype=HALF, requires_grad=True)
    with cuda_autocast_on_cpu(), half_autocast():
        Product.apply(a, a).sum().backward()
    assert seen == [torch.float32, torch.float32]
    assert a.grad is not None and a.grad.dtype is HALF


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(use_reentrant: bool) -> None:
    block = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)

    def gradients(checkpointed: bool) -> list[Tensor]:
        block.zero_grad()
        with cuda_autocast_on_cpu():
            with half_autocast():
                y = checkpoint(block, x, use_reentrant=use_reentrant) if checkpointed else block(x)
            y.float().square().sum().backward()
        return [p.grad.clone() for p in block.parameters() if p.grad is not None]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert torch.equal(ours, theirs)


def test_a_weight_is_cast_once_until_autocast_is_left() -> None:
    linear, x = nn.Linear(4, 4, bias=False), torch.randn(2, 4, dtype=HALF)
    with cuda_autocast_on_cpu(), Casts() as casts:
        with half_autocast():
            with torch.no_grad():
                linear(x)
            assert linear(x).requires_grad
            with half_autocast():
                linear(x)
            before_update = linear(x)
            with torch.no_grad():
                linear.weight.mul_(2)
            assert torch.equal(linear(x), before_update)  # stale, as on CUDA
        with half_autocast():
            assert not torch.equal(linear(x), before_update)
        to_half = casts.count("aten._to_copy")
        with torch.autocast("cpu", HALF, cache_enabled=False):
            linear(x), linear(x)
        uncached = casts.count("aten._to_copy") - to_half
    # of each call three casts are not the weight's to FP16: two to FP32, one back
    assert to_half == 6 * 3 + 2
    assert uncached == 2 * 3 + 2


def test_uses_of_a_tied_weight_meet_in_half() -> None:
    weight = torch.ones(1, 1, requires_grad=True)
    with cuda_autocast_on_cpu(), half_autocast():
        y = F.linear(torch.full((1, 1), 2048.0), weight) + F.linear(torch.ones(1, 1), weight)
    y.backward()
    assert weight.grad is not None and weight.grad.item() == 2048.0  # 2049 is not an FP16 number


def test_the_operator_being_emulated_is_told() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4)
    with cuda_autocast_on_cpu(), half_autocast(), Casts() as casts:
        torch.exp(linear(x))
        x + 1
    assert ("aten.addmm.default", "aten.linear") in casts.seen
    assert {("aten.add.Tensor", None), ("aten.exp.default", None)} <= set(casts.seen)  # the operators themselves
    assert emulated_op() is None


def test_the_label_is_cleared_after_an_error() -> None:
    with cuda_autocast_on_cpu(), half_autocast(), pytest.raises(RuntimeError):
        torch.mm(torch.randn(2, 3), torch.randn(2, 3))
    assert emulated_op() is None


def test_other_threads_are_emulated_too() -> None:
    dtypes: list[torch.dtype] = []

    def work() -> None:
        with half_autocast():
            dtypes.append(torch.exp(torch.ones(2, dtype=HALF)).dtype)

    with cuda_autocast_on_cpu():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert dtypes == [torch.float32]


def test_attention_in_inference_takes_the_slow_path_that_cuda_takes() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with cuda_autocast_on_cpu(), half_autocast(), torch.inference_mode():
        assert layer(x).dtype is torch.float32  # ends in layer_norm
        out, _ = layer.self_attn(x, x, x, need_weights=False)
    assert out.dtype is HALF


def test_double_backward() -> None:
    linear, x = nn.Linear(4, 1), torch.randn(3, 4, requires_grad=True)
    with cuda_autocast_on_cpu(), half_autocast():
        y = linear(x).float().square().sum()
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        grad.square().sum().backward()
    assert linear.weight.grad is not None and linear.weight.grad.abs().sum() > 0


def test_every_exception_names_its_reason_and_is_used() -> None:
    assert all(entry.reason for entry in EXCEPTIONS)
    assert set(EXCEPTIONS) <= set(cuda_entries())


def test_our_lists_know_every_rule_that_this_pytorch_has() -> None:
    assert unlisted_cuda_ops() == ()


def test_mixed_narrow_dtypes_cannot_be_promoted() -> None:
    with cuda_autocast_on_cpu(), half_autocast(), pytest.raises(RuntimeError, match=r"cannot promote torch\.bfloat16"):
        torch.dot(torch.ones(2, dtype=HALF), torch.ones(2, dtype=torch.bfloat16))

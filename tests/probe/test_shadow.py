"""Shadow execution: the real run is untouched, and every tensor's shadow is what the wider format would have given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from probe.shadowing import assert_same, check, records, shadow, shadow_mode


def data(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def in_place_slices(x: Tensor) -> Any:
    y = x * 0.1
    y[1] = x[0] / 3
    y[:, 1:].mul_(1.1)
    y[0, 0] += 0.3
    return y, y.sum(), y[1]


def out_argument(x: Tensor) -> Any:
    target = torch.empty_like(x)
    torch.div(x, 3.0, out=target)
    torch.mul(target, 0.1, out=target[0:1].expand_as(target[0:1]) if False else target)
    return target, target + 1


def out_argument_of_no_size(x: Tensor) -> Any:
    target = x.new_empty(0)
    torch.div(x, 3.0, out=target)
    return target, target * 0.7


def in_place_on_views(x: Tensor) -> Any:
    base = x / 3
    view = base.t()[1:]
    view.add_(0.1)
    flat = base.view(-1)
    flat[::2] *= 0.9
    return base, view, flat


def expanded(x: Tensor) -> Any:
    row = x[0] / 7
    wide = row.expand(3, -1)
    return wide, wide.sum(0), (wide * x[:3]).transpose(0, 1).contiguous()


def transposed(x: Tensor) -> Any:
    y = (x / 3).t()
    z = y.contiguous() @ x
    return z, y.reshape(-1), torch.as_strided(y, (2, 2), (1, 2), 1) * 0.3


def spectrum(x: Tensor) -> Any:
    s = torch.stft(x.reshape(-1), n_fft=8, window=torch.hann_window(8, dtype=x.dtype), return_complex=True)
    parts = torch.view_as_real(s)
    parts.mul_(0.3)
    return s, parts, s.abs(), (s.conj() * s).real, torch.view_as_complex(parts * 1.1), s.imag / 3


def conjugate_product(x: Tensor) -> Any:
    c = torch.complex(x, x / 3)
    return c.conj() @ c.t(), c.mH @ c, c.conj().imag * 0.1


def index_put(x: Tensor) -> Any:
    y = x / 3
    y[torch.tensor([0, 2, 0])] = x[:3] * 0.1
    y.index_put_((torch.tensor([1, 1]), torch.tensor([0, 0])), x[0, :2] / 7, accumulate=True)
    y.index_add_(0, torch.tensor([0, 0]), x[:2] / 11)
    y.scatter_add_(1, torch.zeros(4, 1, dtype=torch.long), x[:, :1] / 13)
    return y, y[torch.tensor([3, 1])], y.gather(1, torch.zeros(4, 1, dtype=torch.long))


def joined(x: Tensor) -> Any:
    y = torch.cat([x / 3, x, x * 0.1], 1)
    parts = y.split(2, 1)
    parts[1].add_(0.1)
    return y, torch.stack([x / 7, x]), y.chunk(2)[0], *torch.unbind(y / 3)


def chosen(x: Tensor) -> Any:
    mask = torch.tensor([True, False, True, False, True])
    y = torch.where(mask, x / 3, x * 0.1)
    return y, y.masked_fill(mask, 0.1), y.masked_select(mask), torch.clamp(y, -0.1, 0.1)


def formats(x: Tensor) -> Any:
    half = (x / 3).half()
    back = half.float() * 0.1
    return half, back, (x / 3).double() * 0.1, half + x, back.bfloat16()


def reductions(x: Tensor) -> Any:
    return (x / 3).sum(), x.mean(1), x.var(0), x.norm(), x.logsumexp(1), x.softmax(1), x.cumsum(0), x.amax(1), x.std()


def values_and_indices(x: Tensor) -> Any:
    top, where = (x / 3).topk(2, 1)
    ordered, order = (x / 3).sort(1)
    return top, where, ordered, order, (x > 0).sum(), x.argmax(1), (x / 3).max(1).values


def gradients(x: Tensor) -> Any:
    x = x.detach().requires_grad_()
    w = (x.detach()[:, :3] / 3).requires_grad_()
    h = torch.tanh(x.t() @ w)
    loss = (h.softmax(1).log() * h).sum() + h[0].expand(4, -1).pow(3).mean()
    loss.backward()
    return loss, x.grad, w.grad


def foreach(x: Tensor) -> Any:
    many = [x / 3, x[0] / 3]
    torch._foreach_mul_(many, 0.1)
    torch._foreach_add_(many, [x, x[0]], alpha=0.3)
    torch._foreach_addcdiv_(many, [x, x[0]], [x.exp(), x[0].exp()], 0.7)
    return many, torch._foreach_sqrt([m.abs() for m in many]), torch._foreach_norm(many)


def convolution(x: Tensor) -> Any:
    image = x.reshape(1, 1, 4, 5)
    kernel = (x[:3, :3] / 3).reshape(1, 1, 3, 3)
    y = F.conv2d(image, kernel, padding=1)
    return y, F.max_pool2d(y, 2), F.avg_pool2d(y, 2), F.interpolate(y, scale_factor=2, mode="bilinear")


def attention(x: Tensor) -> Any:
    q = (x / 3).reshape(1, 1, 4, 5)
    return F.scaled_dot_product_attention(q, q * 0.7, q * 0.3, is_causal=True), F.layer_norm(q, (5,))


def losses(x: Tensor) -> Any:
    target = torch.tensor([0, 1, 2, 3])
    return (
        F.cross_entropy(x, target),
        F.mse_loss(x, x * 0.3),
        F.binary_cross_entropy_with_logits(x, x.sigmoid()),
    )


CODE: list[Callable[[Tensor], Any]] = [
    in_place_slices, out_argument, out_argument_of_no_size, in_place_on_views, expanded, transposed, spectrum,
    conjugate_product, index_put, joined, chosen, formats, reductions, values_and_indices, gradients, foreach,
    convolution, attention, losses,
]  # fmt: skip


@pytest.mark.parametrize("code", CODE, ids=lambda c: c.__name__)
def test_shadow_is_the_same_code_in_fp64(code: Callable[[Tensor], Any]) -> None:
    if code is formats:
        pytest.skip("asks for formats by name: see test_requested_formats_are_widened")
    check(code, data(4, 5))


HALF_CODE = [c for c in CODE if c not in (spectrum, conjugate_product, formats)]


@pytest.mark.parametrize("code", HALF_CODE, ids=lambda c: c.__name__)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_shadow_of_half_is_the_same_code_in_fp32(code: Callable[[Tensor], Any], dtype: torch.dtype) -> None:
    # Order of equal halves, and which is largest, come from the real run; here none are equal.
    check(code, data(4, 5).to(dtype), low_precision=True)


def test_requested_formats_are_widened() -> None:
    x = data(4, 5)
    mode = shadow_mode()
    with mode:
        half, back, double, mixed, narrow = formats(x)
    third = x.double() / 3
    assert_same(shadow(mode, half), third.float())
    assert_same(shadow(mode, back), third.float().double() * 0.1)
    assert_same(shadow(mode, double), third * 0.1)
    assert_same(shadow(mode, mixed), third.float() + x.double())
    assert_same(shadow(mode, narrow), (third.float().double() * 0.1).float())


@pytest.mark.parametrize("low_precision", [False, True])
def test_results_that_are_no_floats_come_from_the_real_run(low_precision: bool) -> None:
    x = data(4, 5).half() if low_precision else data(4, 5)

    def code(x: Tensor) -> Any:
        mask = torch.zeros(4, 5, dtype=torch.bool)
        torch.gt(x / 3, 0.1, out=mask)
        values, indices = x.new_empty(4), torch.zeros(4, dtype=torch.long)
        torch.max(x / 3, 1, out=(values, indices))
        count = torch.zeros(4, dtype=torch.long)
        count.add_(1)
        count.index_copy_(0, torch.tensor([0]), torch.tensor([7]))
        mask.logical_and_(x)
        mask.copy_(x)
        return mask, indices, values, count

    check(code, x, low_precision=low_precision)


def test_integers_beside_floats_are_written_once() -> None:
    """GradScaler's growth tracker is an argument that one operator writes together with floats."""

    def code() -> Any:
        scale, tracker, found = torch.tensor([1024.0]), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
        for _ in range(3):
            torch._amp_update_scale_(scale, tracker, found, 2.0, 0.5, 5)
        return tracker, scale

    check(code, low_precision=True)


def test_dropout_reuses_the_mask_that_was_drawn() -> None:
    mode = shadow_mode()
    x = data(50)
    for draw in (lambda t: F.dropout(t, 0.5), lambda t: torch.native_dropout(t, 0.5, True)[0]):
        torch.manual_seed(1)
        plain = draw(x / 3)
        state = torch.get_rng_state()
        torch.manual_seed(1)
        with mode:
            real = draw(x / 3)
        assert_same(real, plain)
        assert torch.equal(torch.get_rng_state(), state)
        expected = torch.where(real == 0, torch.zeros((), dtype=torch.float64), x.double() / 3 * 2)
        torch.testing.assert_close(shadow(mode, real), expected, rtol=1e-15, atol=0)


def test_dropout_that_is_off_does_not_share_its_inputs_shadow() -> None:
    def code(x: Tensor) -> Any:
        y = x / 3
        z = torch.native_dropout(y, 0.5, False)[0]
        z.add_(0.1)
        return y, z

    check(code, data(4))


def test_random_fills_are_taken_over() -> None:
    torch.manual_seed(3)
    mode = shadow_mode()
    with mode:
        x = torch.empty(3, 4).uniform_()
        y = x * 0.1
        y[1].normal_()
        z = torch.bernoulli(torch.full((4,), 0.5)) / 3
    assert_same(shadow(mode, x), x.double())
    assert_same(shadow(mode, y)[0], x[0].double() * 0.1)
    assert_same(shadow(mode, y)[1], y[1].double())
    assert shadow(mode, z).dtype == torch.float64


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_updated_once(training: bool) -> None:
    def code(x: Tensor, mean: Tensor, var: Tensor) -> Any:
        y = F.batch_norm(x, mean, var, training=training, momentum=0.3)
        z = F.batch_norm(y, mean, var, training=training, momentum=0.3)
        return y, z, mean, var

    mode = check(code, data(6, 3), torch.zeros(3), torch.ones(3))
    norm = [op for op in records(mode) if "batch_norm" in op.op]
    assert len(norm) == 2
    # Statistics are results only where they are written; in evaluation the second norm reads what the first read.
    assert [r.writers for r in norm[1].inputs if r.shape == (3,)] == ([(0,), (0,)] if training else [(), ()])


def test_sparse_gradients_pass_through() -> None:
    def code(w: Tensor, x: Tensor) -> Any:
        F.embedding(torch.tensor([0, 2, 2]), w, sparse=True).mul(x).sum().backward()
        assert w.grad is not None and w.grad.is_sparse
        w.grad.mul_(0.5)
        w.grad.zero_() if False else None
        with torch.no_grad():
            w.add_(w.grad, alpha=-0.1)
        return w, w.grad.coalesce().values()

    real = data(4, 3).requires_grad_()
    plain = data(4, 3).requires_grad_()
    expected = code(plain, data(3, 3, seed=1))
    mode = shadow_mode()
    with mode:
        got = code(real, data(3, 3, seed=1))
    for g, e in zip(got, expected, strict=True):
        assert_same(g, e)


@pytest.mark.parametrize("kind", ["foreach", "fused", "loop"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimizers(name: str, kind: str) -> None:
    if kind == "fused" and name == "RMSprop":
        pytest.skip("PyTorch has none")
    kwargs: dict[str, Any] = {"foreach": kind == "foreach"} if kind != "fused" else {"fused": True}
    if name in ("SGD", "RMSprop"):
        kwargs["momentum"] = 0.9

    def code(a: Tensor, b: Tensor) -> Any:
        optimizer = getattr(torch.optim, name)([a, b], lr=0.1, weight_decay=0.01, **kwargs)
        for _ in range(3):
            optimizer.zero_grad()
            ((a / 3).sum(0) * b).pow(2).sum().backward()
            optimizer.step()
        moments = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, Tensor) and v.dim()]
        return a, b, moments

    mode = shadow_mode()
    inputs = (data(3, 4).requires_grad_(), data(4, seed=1).requires_grad_())
    expected = code(*[i.detach().clone().requires_grad_() for i in inputs])
    reference = code(*[i.detach().double().requires_grad_() for i in inputs])
    with mode:
        got = code(*inputs)
    flat = lambda r: [r[0], r[1], *r[2]]  # noqa: E731
    for g, e, w in zip(flat(got), flat(expected), flat(reference), strict=True):
        assert_same(g, e)
        torch.testing.assert_close(shadow(mode, g), w.detach(), rtol=1e-7, atol=1e-12)


def test_in_place_changes_through_integers_are_not_lost() -> None:
    mode = shadow_mode()
    x = data(4)
    with mode:
        y = x / 3
        y.view(torch.int32).zero_()
        z = y + 1
    assert_same(shadow(mode, z), torch.ones(4, dtype=torch.float64))


def test_an_operation_that_fails_leaves_no_record() -> None:
    mode = shadow_mode()
    with mode:
        with pytest.raises(RuntimeError):
            torch.mm(data(2, 3), data(2, 3))
        data(2, 3) + 1
    ops = records(mode)
    assert [op.index for op in ops] == list(range(len(ops)))
    assert not any(op.op == "aten.mm.default" for op in ops)


def test_writers_of_a_tensor_written_in_parts() -> None:
    mode = shadow_mode()
    with mode:
        x = torch.zeros(3)
        x[0] = 1.0
        x[1] = torch.ones(()) / 3
        x.exp()
        x.mul_(2)
        x.exp()
    ops = {op.index: op for op in records(mode)}
    first, second = [op for op in ops.values() if op.op == "aten.exp.default"]
    assert [ops[i].op for i in first.inputs[0].writers] == [
        "aten.zeros.default",
        "aten.copy_.default",
        "aten.copy_.default",
    ]
    assert [ops[i].op for i in second.inputs[0].writers] == ["aten.mul_.Tensor"]


def test_a_batch_written_in_parts_is_still_the_batch() -> None:
    mode = shadow_mode()
    x = data(3)
    with mode:
        x[0] = 1.0
        x.exp()
    exp = records(mode)[-1]
    assert exp.inputs[0].writers and exp.inputs[0].external is not None

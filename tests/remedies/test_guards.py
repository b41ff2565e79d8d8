"""Each guard: finite at the edge, forward and backward, and the same as before away from it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from nanprobe.remedies import losses, safe
from remedies.cases import MARK, case, edited

# code, the operation as a finding names it, expression of x, a value at the edge, one away from it
GUARDED = [
    ("NP401", "aten.log.default", "torch.log(x)", [0.0, 1.0], [0.5, 2.0]),
    ("NP401", "aten.log.default", "x.log()", [0.0, 1.0], [0.5, 2.0]),
    ("NP401", "aten.log2.default", "torch.log2(x * 2)", [0.0, 1.0], [0.5, 2.0]),
    ("NP401", "aten.log1p.default", "torch.log1p(x)", [-1.0, 1.0], [0.5, 2.0]),
    ("NP402", "aten.sqrt.default", "(x * x).sqrt()", [0.0, 1.0], [0.5, 2.0]),
    ("NP402", "aten.rsqrt.default", "torch.rsqrt(x)", [0.0, 1.0], [0.5, 2.0]),
    ("NP403", "aten.pow.Tensor_Scalar", "x ** 0.5", [0.0, 1.0], [0.5, 2.0]),
    ("NP404", "aten.div.Tensor", "1.0 / x", [0.0, 1.0], [0.5, 2.0]),
    ("NP404", "aten.div.Tensor", "torch.div(x, x)", [0.0, 1.0], [0.5, 2.0]),
    ("NP405", "aten.linalg_vector_norm.default", "x.norm()", [0.0, 0.0], [0.5, 2.0]),
    ("NP405", "aten.linalg_vector_norm.default", "torch.linalg.norm(x)", [0.0, 0.0], [0.5, 2.0]),
    ("NP406", "aten.std.correction", "x.std()", [1.0], None),
    ("NP406", "aten.std.correction", "x.std(dim=0)", [1.0, 1.0], None),
    ("NP407", "aten._softmax.default", "torch.softmax(x, dim=0)", [-math.inf, -math.inf], [0.5, 2.0]),
    ("NP407", "aten.logsumexp.default", "torch.logsumexp(x, 0)", [-math.inf, -math.inf], [0.5, 2.0]),
    ("NP409", "aten.acos.default", "torch.acos(x)", [1.0, -1.0], [0.5, -0.5]),
    ("NP409", "aten.atanh.default", "x.atanh()", [1.0, -1.0], [0.5, -0.5]),
    ("NP409", "aten.logit.default", "torch.logit(x)", [0.0, 1.0], [0.5, 0.25]),
    ("NP410", "aten.atan2.default", "torch.atan2(x, x)", [0.0, 1.0], [0.5, 2.0]),
    ("NP411", "aten.exp.default", "torch.exp(x)", [100.0, 1.0], [0.5, 2.0]),
    ("NP412", "aten.binary_cross_entropy.default", "torch.nn.functional.binary_cross_entropy(x, x.detach())",
     [0.0, 1.0], [0.5, 0.25]),
    ("NP414", "aten.div.Tensor", "torch.nn.functional.normalize(x, dim=0)", [0.0, 0.0], [0.5, 2.0]),
    ("NP415", "aten._linalg_svd.default", "torch.svd(torch.outer(x, x))[0]", [1.0, 0.0], None),
    ("NP416", "aten.cumprod.default", "torch.cumprod(x, 0)", [0.0, 2.0], [0.5, 2.0]),
    ("NP303", "aten.mean.default", "x[x > 9].mean()", [0.0, 1.0], None),
    ("NP303", "aten.mse_loss.default", "torch.nn.functional.mse_loss(x[x > 9], x[x > 9])", [0.0], None),
]  # fmt: skip


def guards(folder: Path, code: str, op: str, expression: str) -> list[str]:
    text = f"import torch\n\n\ndef f(x):\n    return {expression}{MARK}\n"
    found = safe.guarded(case(folder, text, code, op=op))
    return [edited(candidate) for candidate in found]


def evaluate(text: str, values: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    names: dict[str, object] = {}
    exec(text, names)
    x = torch.tensor(values, requires_grad=True)
    y = names["f"](x)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(y.sum(), x, allow_unused=True, materialize_grads=True)
    return y.detach(), gradient


@pytest.mark.parametrize(("code", "op", "expression", "edge", "usual"), GUARDED, ids=lambda v: str(v)[:28])
def test_a_guarded_operation_is_finite_at_the_edge_and_itself_elsewhere(
    tmp_path: Path, code: str, op: str, expression: str, edge: list[float], usual: list[float] | None
) -> None:
    found = guards(tmp_path, code, op, expression)
    assert found
    plain = f"import torch\ndef f(x):\n    return {expression}\n"
    for text in found:
        value, gradient = evaluate(text, edge)
        assert value.isfinite().all() and gradient.isfinite().all(), text
        if usual is not None:
            for mine, theirs in zip(evaluate(text, usual), evaluate(plain, usual), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("code", "op", "expression"),
    [
        ("NP401", "aten.log.default", "torch.exp(x)"),  # another operation stands there
        ("NP404", "aten.div.Tensor", "x / 2"),  # a constant cannot be 0
        ("NP303", "aten.mean.default", "x.mean(dim=0)"),  # the number of elements is not that of the whole
    ],
)
def test_what_does_not_fit_is_left_alone(tmp_path: Path, code: str, op: str, expression: str) -> None:
    assert guards(tmp_path, code, op, expression) == []


def test_labels_that_count_are_counted(tmp_path: Path) -> None:
    text = f"import torch\nimport torch.nn.functional as F\n\n\ndef f(x, y):\n    return F.cross_entropy(x, y){MARK}\n"
    (candidate,) = safe.guarded(case(tmp_path, text, "NP303", op="aten.nll_loss_forward.default"))
    names: dict[str, object] = {}
    exec(edited(candidate), names)
    logits, labels = torch.randn(4, 3), torch.tensor([0, -100, 2, -100])
    loss = names["f"]
    torch.testing.assert_close(loss(logits, labels), torch.nn.functional.cross_entropy(logits, labels))  # type: ignore[operator]
    assert loss(logits, torch.full((4,), -100)) == 0.0  # type: ignore[operator]


LOGS = [
    ("return torch.log(torch.softmax(x, dim=-1))", "log_softmax(x, dim=-1)"),
    ("return torch.softmax(x, -1).log()", "log_softmax(x, -1)"),
    ("return torch.log(torch.sigmoid(x))", "logsigmoid(x)"),
]


@pytest.mark.parametrize(("line", "expected"), LOGS)
def test_a_log_of_a_softmax_becomes_one_function(tmp_path: Path, line: str, expected: str) -> None:
    text = f"import torch\n\n\ndef f(x):\n    {line}{MARK}\n"
    (candidate,) = losses.fused_log(case(tmp_path, text, "NP401", op="aten.log.default"))
    assert expected in edited(candidate)
    value, gradient = evaluate(edited(candidate), [0.0, -200.0])
    assert value.isfinite().all() and gradient.isfinite().all()


def test_a_softmax_on_a_line_of_its_own_shares_its_logits(tmp_path: Path) -> None:
    text = f"import torch\n\n\ndef f(x):\n    p = torch.softmax(x * 2, dim=-1)\n    return p * torch.log(p){MARK}\n"
    (candidate,) = losses.fused_log(case(tmp_path, text, "NP401", op="aten.log.default"))
    assert "    p_logits = x * 2\n    p = torch.softmax(p_logits, dim=-1)\n" in edited(candidate)
    value, gradient = evaluate(edited(candidate), [0.0, -200.0])
    assert value.isfinite().all() and gradient.isfinite().all()


def test_a_log_of_something_else_is_no_softmax(tmp_path: Path) -> None:
    text = f"import torch\n\n\ndef f(x):\n    p = torch.relu(x)\n    return torch.log(p){MARK}\n"
    assert list(losses.fused_log(case(tmp_path, text, "NP401", op="aten.log.default"))) == []


def test_a_masked_input_gets_a_double_where(tmp_path: Path) -> None:
    text = f"import torch\n\n\ndef f(x):\n    return torch.where(x > 0, torch.sqrt(x), 0.0){MARK}\n"
    (candidate,) = safe.masked_inside(case(tmp_path, text, "NP402", op="aten.sqrt.default"))
    value, gradient = evaluate(edited(candidate), [0.0, 4.0])
    assert value.tolist() == [0.0, 2.0] and gradient.tolist() == [0.0, 0.25]


def test_a_product_is_scaled_before_it_is_taken(tmp_path: Path) -> None:
    text = f"import torch\n\n\ndef f(x):\n    return (x @ x.t()) / 8.0{MARK}\n"
    (candidate,) = safe.scaled_before(case(tmp_path, text, "NP101", op="aten.mm.default"))
    assert "((x / 8.0) @ x.t())" in edited(candidate)

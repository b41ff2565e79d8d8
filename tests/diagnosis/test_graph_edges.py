"""Every function with an edge, run for real: code, operation, the value it was given, and a remedy that can be typed.

One tiny script each, through a session of its own. What PyTorch keeps safe by itself must stay silent.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Beta, Categorical, Dirichlet, Gamma, LogNormal, Normal, Poisson

from nanprobe.diagnosis import findings_of
from nanprobe.findings import Finding, Kind, Severity
from stages import run_stage

INF = float("inf")
Loss = Callable[[Tensor], Tensor]


def findings(values: Any, loss: Loss) -> tuple[Finding, ...]:
    """What nanprobe finds in one step on a parameter of these values."""

    def loop() -> None:
        w = torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))
        optimizer = torch.optim.SGD([w], lr=0.1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss(w).backward()
        optimizer.step()

    return findings_of(run_stage(loop, deep=(0,)))


def masked(w: Tensor) -> Tensor:
    return w.masked_fill(torch.ones_like(w, dtype=torch.bool), -INF)


def where(condition: Callable[[Tensor], Tensor], value: Loss) -> Loss:
    """A value that is masked away afterwards, where the condition does not hold."""
    return lambda w: torch.where(condition(w), value(w), 0 * w).sum()


EYE = [[1.0, 0.0], [0.0, 1.0]]
ONES = [[1.0, 1.0], [1.0, 1.0]]
WEIGHTS = torch.tensor([[1.0, 2.0], [3.0, 4.0]])

# Name, parameter, loss, code, operator, what the title says, what the remedy says.
FAULTS: list[tuple[str, Any, Loss, str, str, str, str]] = [
    ("log 0", [0.0, 1.0], lambda w: w.log().sum(), "NP401", "log", "log of 0", "torch.log(x.clamp(min=1e-7))"),
    ("log -1", [-1.0, 1.0], lambda w: w.log().sum(), "NP401", "log", "log of -1", "torch.log(x.clamp"),
    ("log'", [0.0, 1.0], where(lambda w: w > 0, torch.log), "NP401", "div", "derivative of log at 0", "log(x.clamp"),
    ("log2", [0.0, 1.0], lambda w: w.log2().sum(), "NP401", "log2", "log2 of 0", "torch.log2(x.clamp(min=1e-7))"),
    ("log1p", [-1.0, 1.0], lambda w: w.log1p().sum(), "NP401", "log1p", "log1p of -1", "log1p(x.clamp(min=-1 + 1e-6))"),
    ("log1p'", [-1.0, 1.0], where(lambda w: w > -1, torch.log1p), "NP401", "div", "log1p at -1", "log1p(x.clamp"),
    ("xlogy", [0.0, 1.0], lambda w: torch.xlogy(torch.full((2,), 2.0), w).sum(), "NP401", "xlogy", "xlogy of 0",
     "xlogy(x, y.clamp(min=1e-7))"),
    ("sqrt -1", [-1.0, 1.0], lambda w: w.sqrt().sum(), "NP402", "sqrt", "sqrt of -1", "x.clamp(min=0) + 1e-8"),
    ("sqrt'", [0.0, 1.0], lambda w: (w * w).sqrt().sum(), "NP402", "div", "sqrt at exactly 0", "torch.sqrt(x.clamp"),
    ("rsqrt", [0.0, 1.0], lambda w: w.rsqrt().sum(), "NP402", "rsqrt", "rsqrt of 0", "torch.rsqrt(x.clamp(min=0)"),
    ("rsqrt'", [0.0, 1.0], where(lambda w: w > 0, torch.rsqrt), "NP402", "rsqrt", "rsqrt of 0", "torch.rsqrt(x.clamp"),
    ("pow'", [0.0, 1.0], lambda w: (w**0.4).sum(), "NP403", "pow", "a power at exactly 0", "x.clamp(min=1e-7) ** p"),
    ("pow of -2", [-2.0, 1.0], lambda w: (w**0.4).sum(), "NP403", "pow", "-2 to a power", "x.clamp(min=1e-7) ** p"),
    ("0 ** -2", [0.0, 1.0], lambda w: (w**-2).sum(), "NP403", "pow", "0 to a power", "x.clamp(min=1e-7) ** p"),
    ("div", [0.0, 1.0], lambda w: (torch.ones(2) / w).sum(), "NP404", "div", "division by 0", "a / b.clamp(min=1e-8)"),
    ("0 / 0", [0.0, 1.0], lambda w: (w / w).sum(), "NP404", "div", "division by 0", "torch.where(b != 0, b, 1)"),
    ("reciprocal", [0.0, 1.0], lambda w: (1 / w).sum(), "NP404", "reciprocal", "division by 0", "1 / x.clamp("),
    ("where of x/x", [0.0, 1.0], lambda w: torch.where(w > 0, w.sin() / w, w).sum(), "NP404", "div",
     "division by 0 in the gradient", "torch.where(b != 0, b, 1)"),
    ("norm''", [0.0, 0.0], lambda w: torch.autograd.grad(torch.linalg.vector_norm(w * 2), w, create_graph=True)[0]
     .pow(2).sum(), "NP405", "div", "linalg.vector_norm at exactly 0", "torch.sqrt((x * x).sum(-1) + 1e-8)"),
    ("hand-made distance", ONES, lambda w: ((w[0] - w[1]) ** 2).sum().sqrt(), "NP402", "div", "sqrt at exactly 0",
     "torch.sqrt(x.clamp(min=0) + 1e-8)"),
    ("std of one", [1.0], lambda w: w.std(), "NP406", "std", "std of one element", "unbiased=False"),
    ("var of one", [[1.0], [2.0]], lambda w: w.var(1).sum(), "NP406", "var", "var of one element", "fewer than 2"),
    ("normalised by std", [2.0, 2.0], lambda w: ((w - w.mean()) / w.std()).sum(), "NP406", "div",
     "standard deviation that is 0", "(x.std() + 1e-6)"),
    ("softmax", [[1.0, 2.0]], lambda w: masked(w).softmax(1).sum(), "NP407", "_softmax", "-Inf throughout", "unmasked"),
    ("log_softmax", [[1.0, 2.0]], lambda w: masked(w).log_softmax(1)[0, 0], "NP407", "_log_softmax", "-Inf throughout",
     "torch.finfo(x.dtype).min"),
    ("logsumexp", [[1.0, 2.0]], lambda w: masked(w).logsumexp(1).sum(), "NP407", "logsumexp", "-Inf throughout", ""),
    ("logsumexp'", [[1.0, 2.0]], lambda w: (w + torch.full((1, 2), -INF)).logsumexp(1).exp().sum(), "NP407",
     "logsumexp", "over a row that is -Inf throughout", "unmasked"),
    ("log-odds by hand", [[1.0, 2.0]], lambda w: (masked(w) - masked(w).logsumexp(1, True))[0, 0], "NP407",
     "logsumexp", "logsumexp over a row that is -Inf throughout", "unmasked"),
    ("NaN × 0", [0.0, 1.0], lambda w: (w.log() * (w > 0)).sum(), "NP401", "log", "log of 0", "torch.log(x.clamp"),
    ("0 × Inf", [0.0, 1.0], lambda w: (w * masked(torch.zeros(2))).sum(), "NP408", "mul", "0 times Inf", "torch.where"),
    ("acos", [1.5, 0.0], lambda w: w.acos().sum(), "NP409", "acos", "acos of 1.5", "x.clamp(-1 + 1e-6, 1 - 1e-6)"),
    ("acos'", [1.0, 0.0], lambda w: w.acos().sum(), "NP409", "rsqrt", "acos at ±1", "acos(x.clamp(-1 + 1e-6"),
    ("asin'", [-1.0, 0.0], lambda w: w.asin().sum(), "NP409", "rsqrt", "asin at ±1", "asin(x.clamp(-1 + 1e-6"),
    ("acosh'", [1.0, 2.0], lambda w: w.acosh().sum(), "NP409", "rsqrt", "acosh at 1", "acosh(x.clamp(min=1 + 1e-6))"),
    ("atanh", [1.0, 0.0], lambda w: w.atanh().sum(), "NP409", "atanh", "atanh of 1", "atanh(x.clamp(-1 + 1e-6"),
    ("logit", [1.0, 0.5], lambda w: w.logit().sum(), "NP409", "logit", "logit of 1", "torch.logit(x, eps=1e-6)"),
    ("atan2'", [1e-20, 1.0], lambda w: torch.atan2(w, w * 1).sum(), "NP410", "reciprocal", "near the origin",
     "torch.atan2(y, x + 1e-6)"),
    ("hypot'", [0.0, 1.0], lambda w: torch.hypot(w, w * 1).sum(), "NP410", "div", "near the origin",
     "torch.sqrt(x * x + y * y + 1e-12)"),
    ("exp", [100.0, 1.0], lambda w: w.exp().sum(), "NP411", "exp", "exp of 100", "torch.exp(x.clamp(max=20))"),
    ("sinh", [-100.0, 1.0], lambda w: w.sinh().sum(), "NP411", "sinh", "sinh of -100", "torch.sinh(x.clamp(-20, 20))"),
    ("BCE by hand", [1.0, 0.5], lambda w: -(1 - w).log().sum(), "NP401", "log", "log of 0",
     "binary_cross_entropy_with_logits"),
    ("layer norm, eps 0", [[1.0, 1.0]], lambda w: F.layer_norm(w, (2,), eps=0.0).sum(), "NP413", "native_layer_norm",
     "no variance", "eps that is not 0 (1e-5)"),
    ("cosine of zeros", [0.0, 0.0], lambda w: F.cosine_similarity(w, torch.ones(2), dim=0, eps=0.0), "NP414", "div",
     "length of a vector that is 0", "F.cosine_similarity(a, b, eps=1e-4)"),
    ("normalised zeros", [[0.0, 0.0], [3.0, 4.0]], lambda w: (w / w.norm(dim=1, keepdim=True)).sum(), "NP414", "div",
     "length of a vector that is 0", "F.normalize(x, dim=-1, eps=1e-4)"),
    ("normalised by hand", [0.0, 0.0], lambda w: (w / (w * w).sum().sqrt()).sum(), "NP414", "div",
     "length of a vector that is 0", "F.normalize"),
    ("eigh'", EYE, lambda w: (torch.linalg.eigh(w @ w.T)[1] * WEIGHTS).sum(), "NP415", "div_", "linalg.eigh with equal",
     "break the tie"),
    ("svd'", EYE, lambda w: (torch.linalg.svd(w)[0] @ WEIGHTS @ torch.linalg.svd(w)[2]).sum(), "NP415", "div",
     "linalg.svd with equal", "singular values only"),
    ("cholesky'", ONES, lambda w: torch.linalg.cholesky_ex(w)[0].sum(), "NP415", "linalg_solve_triangular", "cholesky",
     "1e-6 * torch.eye(n)"),
    ("logdet", ONES, torch.logdet, "NP415", "_linalg_slogdet", "singular matrix", "1e-6 * torch.eye(n)"),
    ("cumprod by hand", [0.0, 2.0], lambda w: (w.cumprod(0) / w).sum(), "NP416", "div", "a factor that is 0",
     "x.clamp(min=1e-6)"),
    ("lgamma", [0.0, 1.0], lambda w: w.lgamma().sum(), "NP417", "lgamma", "lgamma of 0", "F.softplus(x) + 1e-4"),
    ("Normal", [0.0, 1.0], lambda w: Normal(0.0, w, validate_args=False).log_prob(torch.zeros(2)).sum(), "NP417", "div",
     "Normal: division by 0", "keep `scale` away from 0"),
    ("LogNormal", [2.0, 1.0], lambda w: LogNormal(0.0, w, validate_args=False).log_prob(torch.tensor([0.0, 1.0])).sum(),
     "NP401", "log", "log of 0", "torch.log(x.clamp"),
    ("Beta", [2.0, 3.0], lambda w: Beta(w, w).log_prob(torch.tensor([0.5, 1.0])).sum(), "NP417", "xlogy", "Beta: xlogy",
     "x.clamp(1e-6, 1 - 1e-6)"),
    ("Dirichlet", [2.0, 3.0], lambda w: Dirichlet(w).log_prob(torch.tensor([0.0, 1.0])), "NP417", "xlogy", "Dirichlet",
     "simplex"),
    ("Gamma", [0.0, 1.0], lambda w: Gamma(w, w, validate_args=False).log_prob(torch.ones(2)).sum(), "NP417", "lgamma",
     "Gamma: lgamma of 0", "rate positive"),
    ("Categorical", [[0.0, 0.0]], lambda w: Categorical(w, validate_args=False).log_prob(torch.zeros(1)).sum(), "NP417",
     "div", "Categorical: division by 0", "at least one class possible"),
    ("Categorical, no action", [[1.0, 2.0]], lambda w: Categorical(logits=masked(w)).log_prob(torch.zeros(1)).sum(),
     "NP417", "logsumexp", "Categorical", "a finite logit"),
    ("remainder", [0.0, 1.0], lambda w: torch.remainder(torch.full((2,), 3.0), w).sum(), "NP419", "remainder",
     "remainder by 0", "divisor away from 0"),
    ("no target", [[0.0, 1.0]], lambda w: F.cross_entropy(w, torch.tensor([-100])), "NP303", "nll_loss_forward",
     "every label is ignored", "clamp(min=1)"),
    ("empty selection", [1.0, 2.0], lambda w: w[w > 5].mean(), "NP303", "mean", "an empty selection", "max(count, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "loss", "code", "op", "title", "remedy"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS]
)
def test_an_edge(values: Any, loss: Loss, code: str, op: str, title: str, remedy: str) -> None:
    finding = next(f for f in findings(values, loss) if f.severity is Severity.ERROR)
    said = " ".join(r.text for r in finding.remedies)
    assert (finding.code, (finding.op or "").split(".")[1]) == (code, op)
    assert title in finding.title and remedy in said, (finding.title, said)
    assert finding.source is not None and finding.source.file == __file__
    if code.startswith("NP4"):
        assert finding.kind is Kind.GRAPH and ("Element" in finding.why or "first" in finding.why)


# Name, parameter, loss, code, what the remedy says: PyTorch itself refuses these.
REFUSED: list[tuple[str, Any, Loss, str, str, str]] = [
    ("BCE", [1.5, 1.0], lambda w: F.binary_cross_entropy(w, torch.ones(2)), "NP412", "outside [0, 1]", "with_logits"),
    ("batch norm", [[0.0, 1.0]], lambda w: F.batch_norm(w, None, None, training=True).sum(), "NP413", "[1, 2]",
     "drop_last=True"),
    ("instance norm", [[[0.0], [1.0]]], lambda w: F.instance_norm(w).sum(), "NP413", "one value", "one position"),
    ("inverse", ONES, lambda w: torch.linalg.inv(w).sum(), "NP415", "linalg.inv of a", "1e-6 * torch.eye(n)"),
    ("solve", ONES, lambda w: torch.linalg.solve(w, torch.ones(2)).sum(), "NP415", "linalg.solve of a", "eye(n)"),
    ("Normal", [0.0, 1.0], lambda w: Normal(torch.zeros(2), w).log_prob(torch.zeros(2)).sum(), "NP417",
     "parameter scale", "keep `scale` away from 0"),
    ("Beta", [2.0, 3.0], lambda w: Beta(w, w).log_prob(torch.tensor([0.5, 1.25])).sum(), "NP417", "a sample outside",
     "x.clamp(1e-6, 1 - 1e-6)"),
    ("Poisson", [-1.0, 3.0], lambda w: Poisson(w).log_prob(torch.ones(2)).sum(), "NP417", "parameter rate",
     "rate positive"),
    ("LogNormal", [-1.0, 3.0], lambda w: LogNormal(torch.zeros(2), w).log_prob(torch.ones(2)).sum(), "NP417",
     "parameter scale", "keep `scale` away from 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("values", "loss", "code", "title", "remedy"), [f[1:] for f in REFUSED], ids=[f[0] for f in REFUSED]
)
def test_an_edge_that_pytorch_refuses(values: Any, loss: Loss, code: str, title: str, remedy: str) -> None:
    (finding,) = findings(values, loss)
    assert finding.code == code and title in finding.title, finding.title
    assert remedy in " ".join(r.text for r in finding.remedies)
    assert finding.source is not None and finding.source.file == __file__


# PyTorch itself keeps the derivatives of these finite (by masking), so there is nothing to report.
SAFE: list[tuple[str, Any, Loss]] = [
    ("norm at 0", [0.0, 0.0], lambda w: w.norm() + torch.linalg.vector_norm(w, 3) + w.norm(p=0.5)),
    ("norm of a gradient of 0", [0.0, 0.0],
     lambda w: torch.autograd.grad((w**2).sum(), w, create_graph=True)[0].norm()),
    ("nuclear norm at 0", [[0.0, 0.0], [0.0, 0.0]], lambda w: torch.linalg.matrix_norm(w, "nuc")),
    ("cdist of equal points", ONES, lambda w: torch.cdist(w, w).sum() + torch.cdist(w, w, p=1.5).sum()),
    ("cdist of many equal points", [[1.0, 1.0]] * 30, lambda w: torch.cdist(w, w).sum()),
    ("pdist of equal points", ONES, lambda w: F.pdist(w).sum() + F.pairwise_distance(w, w, eps=0.0).sum()),
    ("std of equal values", [1.0, 1.0], lambda w: w.std() + torch.std_mean(w)[0]),
    ("prod with factors of 0", [[0.0, 0.0, 2.0], [0.0, 1.0, 2.0]], lambda w: w.prod(1).sum() + w.prod()),
    ("cumprod with factors of 0", [0.0, 2.0, 0.0], lambda w: w.cumprod(0).sum()),
    ("atan2 at the origin", [0.0, 1.0], lambda w: torch.atan2(w, w * 1).sum()),
    ("angle and abs at the origin", [0.0, 1.0], lambda w: torch.complex(w, w * 1).angle().sum()
     + torch.complex(w, w * 1).abs().sum()),
    ("attention to nothing", [[[1.0, 2.0], [1.0, 3.0]]], lambda w: F.scaled_dot_product_attention(
        w, w, w, attn_mask=torch.tensor([[False, False], [True, True]])).sum()),
    ("BCE at 0 and 1", [0.0, 1.0], lambda w: F.binary_cross_entropy(w, torch.tensor([1.0, 0.0]))),
    ("cosine of zeros, eps", [0.0, 0.0], lambda w: F.cosine_similarity(w, torch.ones(2), dim=0)),
    ("normalised zeros, eps", [0.0, 0.0], lambda w: F.normalize(w, dim=0).sum()),
    ("eigenvalues only", EYE, lambda w: torch.linalg.eigvalsh(w @ w.T).sum() + torch.linalg.svdvals(w).sum()),
    ("det of a singular matrix", ONES, torch.linalg.det),
    ("an impossible class not taken", [[1.0, 2.0]], lambda w: Categorical(
        logits=w.masked_fill(torch.tensor([[False, True]]), -INF)).log_prob(torch.zeros(1)).sum()),
    ("log of a clamp", [0.0, 1.0], lambda w: w.clamp(min=1e-7).log().sum()),
    ("double where", [0.0, 1.0], lambda w: torch.where(w > 0, 1 / torch.where(w > 0, w, 1.0), 0.0).sum()),
    ("acos of a clamp", [1.0, 0.5], lambda w: w.clamp(-1 + 1e-6, 1 - 1e-6).acos().sum()),
    ("one unmasked", [[1.0, 2.0]], lambda w: w.masked_fill(torch.tensor([[False, True]]), -INF).softmax(1).sum()),
]  # fmt: skip


@pytest.mark.parametrize(("values", "loss"), [s[1:] for s in SAFE], ids=[s[0] for s in SAFE])
def test_what_stays_finite_is_silent(values: Any, loss: Loss) -> None:
    assert findings(values, loss) == ()


@pytest.mark.parametrize("loss", [torch.prod, lambda w: w.cumprod(0).sum(), lambda w: (w * 1e18).norm()])
def test_a_number_that_outgrows_fp32_is_no_edge(loss: Loss) -> None:
    finding = next(f for f in findings([1e20, 1e20], loss) if f.severity is Severity.ERROR)
    assert finding.kind is not Kind.GRAPH

"""The faults that can be put into a program: the lines they add, and what a right verdict says about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Trace(Enum):
    """Where a fault must show for it to count, and so which direct computation decides whether it left a trace."""

    FULL = "the plain FP32 run goes wrong"
    RANGE = "the low-precision run goes wrong, the FP32 run does not"
    FLUSH = "gradients that FP32 has are 0 in low precision"
    STILL = "the weights stay as they are"
    CALLS = "the calls themselves; no number is needed"


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault. In its lines, "*" marks the culprit; the slots are those of `fill`."""

    place: str  # "forward" | "loss" | "data" | "loop" | "before" | "after" (the optimizer's step)
    lines: tuple[str, ...]
    kinds: frozenset[str]  # kinds that a right verdict may have
    trace: Trace = Trace.FULL
    needs: Mapping[str, tuple[object, ...]] = field(default_factory=dict)  # Program field -> the values it works with
    codes: frozenset[str] = frozenset()  # a finding of one of these, of any severity, is right too
    gated: bool = True  # begins at a step of its own; else holds from the start
    anywhere: bool = False  # no one line is to blame
    witnessed: str = "h"  # the variable that shows whether the fault has hit


@dataclass(frozen=True)
class Fault:
    """A fault put into a program."""

    kind: str  # a key of FAULTS
    after: int = 0  # layers before it, for a fault in the forward pass
    step: int = 0  # the step from which it holds
    row: int = 0  # the row of the batch, where it concerns one
    bits: int = 16  # size, where there is one: a power of two
    column: int = 0

    @property
    def about(self) -> FaultKind:
        """Its entry in the catalogue."""
        return FAULTS[self.kind]


def _graph(*lines: str, place: str = "forward", **more: object) -> FaultKind:
    return FaultKind(place, lines, frozenset({"graph"}), **more)  # type: ignore[arg-type]


def _range(*lines: str, **more: object) -> FaultKind:
    return FaultKind("forward", lines, frozenset({"overflow"}), Trace.RANGE, **more)  # type: ignore[arg-type]


# A product with a mask, because relu leaves Inf out of its gradient: behind it, most of these faults do no harm.
_SOME_ZERO = "z = (h - h.mean()) * (h > h.mean())"
_BEHIND_RELU = "z = torch.relu(h - h.mean())"
_ALL_ZERO = "z = h - h.detach()"
_ROW = "mask = torch.zeros_like(h, dtype=torch.bool)"
_TIMED = {"shape": ("tokens", "sequences")}
_OWN = {"precision": ("fp32", "amp", "bf16", "half")}  # the optimizer has the model's own parameters
_SCALES = {"precision": ("amp",), "scaler": (True,), "form": ("script",)}

DOMAIN_FAULTS = {
    "log_of_zero": _graph(_SOME_ZERO, "*h = torch.log(z)"),
    "log_of_negative": _graph("*h = torch.log(h)"),
    "log2_of_zero": _graph(_SOME_ZERO, "*h = torch.log2(z)"),
    "log1p_of_minus_one": _graph("z = torch.sigmoid(h * 1e4)", "*h = torch.log1p(-z)"),
    "log_of_saturated": _graph("z = torch.softmax(h * 1e4, dim=-1)", "*h = torch.log(z)"),
    "sqrt_of_negative": _graph("*h = torch.sqrt(h)"),
    "sqrt_at_zero": _graph(_SOME_ZERO, "*h = torch.sqrt(z)"),
    "sqrt_behind_relu": _graph(_BEHIND_RELU, "*h = torch.sqrt(z)"),
    "power_at_zero": _graph(_SOME_ZERO, "*h = z ** 0.5"),
    "power_of_negative": _graph("*h = h ** 0.3"),
    "distance_of_same": _graph(_ALL_ZERO, "*h = h * torch.sqrt(z.pow(2).sum(-1, keepdim=True))"),
    "divide_by_zero": _graph(_ALL_ZERO, "*h = h / z.norm(dim=-1, keepdim=True)"),
    "zero_by_zero": _graph(_ALL_ZERO, "*h = z / z.abs().sum(-1, keepdim=True)"),
    "reciprocal_of_zero": _graph(_SOME_ZERO, "*h = h + torch.reciprocal(z)"),
    "rsqrt_of_zero": _graph(_ALL_ZERO, "*h = h * torch.rsqrt(z.pow(2).mean(-1, keepdim=True))"),
    "acos_at_one": _graph("z = h / (h.detach().abs() + (h == 0))", "*h = torch.acos(z)"),
    "asin_clamped": _graph("z = torch.clamp(h * 1e3, -1.0, 1.0)", "*h = torch.asin(z)"),
    "atanh_at_one": _graph("z = torch.tanh(h * 1e4)", "*h = torch.atanh(z)"),
    "atan2_at_origin": _graph(_ALL_ZERO, "*h = h + torch.atan2(z, z)"),
    "std_of_one": _graph("*h = h + h.unsqueeze(-1).std(-1)"),
    "std_of_constant": _graph(_ALL_ZERO, "*h = h + z.std(-1, keepdim=True)"),
    "masked_softmax_row": _graph(_ROW, "mask[{row}] = True", '*h = h.masked_fill(mask, float("-inf")).softmax(-1)'),
    "masked_logsumexp_row": _graph(
        _ROW, "mask[{row}] = True", '*h = h + h.masked_fill(mask, float("-inf")).logsumexp(-1, keepdim=True)'
    ),
    "where_gradient": _graph("*h = torch.where(h > 0, torch.sqrt(h), torch.zeros_like(h))"),
    "masked_division": _graph(_SOME_ZERO, "*h = torch.where(z > 0, h / z, torch.zeros_like(h))"),
    "exp_overflow": _graph("*h = torch.exp(h.abs() * 1e4)"),
    "lgamma_of_zero": _graph(_SOME_ZERO, "*h = h + torch.lgamma(z)"),
    "nan_by_zero_mask": _graph(_SOME_ZERO, "*h = h * (z / z)"),
    "bad_gradient": _graph("h = Halve.apply(h)"),
}  # fmt: skip

LOSS_FAULTS = {
    "cross_entropy_by_hand": _graph(
        "p = torch.sigmoid(out * 1e3)",
        "*loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()",
        place="loss", needs={"task": ("multilabel",)},
    ),
    "entropy_by_hand": _graph(
        "p = torch.softmax(out * 1e4, dim=-1)", "*loss = loss + (p * torch.log(p)).sum(-1).mean()",
        place="loss", needs={"task": ("classification", "multilabel")},
    ),
    "rmse_at_zero": _graph("*loss = loss + torch.sqrt(F.mse_loss(out, out.detach()))", place="loss"),
    "ratio_of_nothing": _graph(
        "hits = (out > 1e6).float().sum()", "*loss = loss * hits / hits", place="loss"
    ),
    "empty_selection": FaultKind(
        "loss", ("keep = out.abs().sum(-1) > 1e9", "*loss = loss + out[keep].mean()"), frozenset({"data", "graph"})
    ),
}  # fmt: skip

_PLAIN_LOOP = {"form": ("script",), "precision": ("fp32", "amp", "bf16"), "accumulation": (1,), "clip": (None,)}

# Between backward and the end of the step; "before" or "after" the optimizer's own step.
UPDATE_FAULTS = {
    "gradient_normalised": _graph(
        "for p in model.parameters():", "+p.grad.mul_(float(len(p.grad) == 1))", "+*p.grad.div_(p.grad.norm())",
        place="before", needs=_PLAIN_LOOP,
    ),
    "own_update": _graph(
        "with torch.no_grad():",
        "+for p in model.parameters():", "++*p -= 1e-3 * p.grad / p.grad.pow(2).sqrt()",
        place="after", needs={**_PLAIN_LOOP, "shape": ("tokens",)},
    ),
}  # fmt: skip

RANGE_FAULTS = {
    "product_overflow": _range("*h = h * {size}", "h = h / {size}"),
    "square_overflow": _range("z = h * {root}", "*z = z * z", "h = h + z / {size}"),
    "matmul_overflow": _range(
        "*z = h @ h.new_full((h.shape[-1], h.shape[-1]), {root} * 8)", "h = h + z / ({root} * 8)"
    ),
    "score_overflow": _range(
        "q = h * {root}", "*scores = q @ q.transpose(-1, -2)", "h = h + (scores / {size}).softmax(-1).to(h.dtype) @ h",
        needs=_TIMED,
    ),
    "norm_overflow": _range(
        "z = h * {root}", "*z = (z * z).mean(-1, keepdim=True)", "h = h / (1.0 + z / {size}).sqrt().to(h.dtype)",
        witnessed="z",
    ),
    "sum_overflow": _range(
        "*z = (h.abs() * {root}).sum(-1, keepdim=True)", "h = h * (z / {root}).to(h.dtype)",
        needs={"precision": ("half", "masters")},
    ),
    # Without a scale above 1 only, so that it is the gradient that is too large, not the scale.
    "gradient_overflow": _range(
        "h = h * 2.0 ** -12", "*h = h * 2.0 ** 12",
        needs={"precision": ("amp", "half"), "init_scale": (1.0,), "optimizer": ("sgd",), "clip": ("norm",)},
        gated=False,
    ),
}  # fmt: skip

FLUSH_FAULTS = {
    "gradient_flushed": FaultKind(
        "forward", ("h = h * 2.0 ** 12", "*h = h * 2.0 ** -12"), frozenset({"underflow"}), Trace.FLUSH,
        needs={"precision": ("amp", "half"), "scaler": (False,)}, gated=False,
    ),
    "loss_weight_tiny": FaultKind(
        "loss", ("*loss = loss * 1e-7",), frozenset({"underflow"}), Trace.FLUSH,
        needs={"precision": ("amp", "half"), "scaler": (False,)}, gated=False, anywhere=True,
    ),
    "update_swallowed": FaultKind(
        "loop", (), frozenset({"underflow"}), Trace.STILL,
        needs={"precision": ("half",), "optimizer": ("sgd",), "form": ("script",)}, gated=False, anywhere=True,
    ),
    "adam_eps": FaultKind(
        "loop", (), frozenset({"underflow"}), Trace.RANGE,
        needs={"precision": ("half",), "optimizer": ("adam", "adamw")}, gated=False,
    ),
}  # fmt: skip


def _data(**more: object) -> FaultKind:
    return FaultKind("data", (), frozenset({"data"}), **more)  # type: ignore[arg-type]


_FLOATS = {"shape": ("vectors", "sequences", "images")}

DATA_FAULTS = {
    "nan_input": _data(needs=_FLOATS),
    "inf_input": _data(needs=_FLOATS),
    "absurd_input": _data(needs=_FLOATS),
    "nan_target": _data(needs={"task": ("regression", "multilabel")}),
    "bad_label": _data(needs={"task": ("classification",)}),
    "bad_token": _data(needs={"shape": ("tokens",)}),
    "labels_ignored": _data(needs={"task": ("classification",), "data": ("list", "loader")}),
    "zero_row": FaultKind(
        "data", ("*x = x / x.abs().sum(-1, keepdim=True)",), frozenset({"graph", "data"}), needs={"shape": ("vectors",)}
    ),
}

DIVERGENCE_FAULTS = {
    "huge_rate": FaultKind(
        "loop", (), frozenset({"divergence"}),
        needs={"optimizer": ("sgd", "momentum"), "clip": (None,), "task": ("regression",)},
        anywhere=True, gated=False,
    ),
}  # fmt: skip


def _misuse(*codes: str, **more: object) -> FaultKind:
    return FaultKind("loop", (), frozenset({"misuse"}), Trace.CALLS, codes=frozenset(codes), gated=False, **more)  # type: ignore[arg-type]


MISUSE_FAULTS = {
    "clip_scaled": _misuse("NP601", needs={**_SCALES, "clip": ("norm", "value")}),
    "step_scaled": _misuse("NP602", needs={**_SCALES, "clip": (None,)}),
    "no_update": _misuse("NP603", needs=_SCALES),
    "update_each_micro_batch": _misuse("NP604", needs={**_SCALES, "accumulation": (2, 3)}),
    "step_each_micro_batch": _misuse("NP604", needs={**_OWN, "accumulation": (2, 3), "form": ("script",)}),
    "never_cleared": _misuse("NP616", needs={**_OWN, "accumulation": (1,), "form": ("script",)}),
    "loss_cut_off": _misuse("NP607", needs={"form": ("script",)}, anywhere=True),
    "nan_rate": _misuse("NP608", needs={"form": ("script",)}),
    "loop_in_autocast": _misuse("NP606", needs={"precision": ("amp",), "form": ("script",)}),
    "scaler_with_bf16": _misuse("NP612", needs={"precision": ("bf16",), "form": ("script",)}, anywhere=True),
    "no_scaler": _misuse("NP611", needs={"precision": ("amp",), "scaler": (False,)}, anywhere=True),
    "half_weights": _misuse("NP610", needs={"precision": ("half",)}, anywhere=True),
}

FAULTS: dict[str, FaultKind] = {
    **DOMAIN_FAULTS, **LOSS_FAULTS, **UPDATE_FAULTS, **RANGE_FAULTS, **FLUSH_FAULTS, **DATA_FAULTS,
    **DIVERGENCE_FAULTS, **MISUSE_FAULTS,
}  # fmt: skip


def fill(line: str, fault: Fault) -> str:
    """A line of a fault with its slots filled: {size} a power of two, {root} its square root, {row}."""
    return line.format(size=f"2.0 ** {fault.bits}", root=f"2.0 ** {fault.bits / 2:g}", row=fault.row)

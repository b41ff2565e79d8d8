"""Which functions have an edge, and what lies beyond it: operation or autograd node -> domain."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nanprobe.diagnosis.origins import Birth, Origin
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.records import OpRecord


@dataclass(frozen=True, slots=True)
class Domain:
    """A family of functions with the same edge."""

    code: str
    names: frozenset[str]  # operators, and autograd nodes in snake case
    forward: str  # what went out of its domain, {name} and {value} filled in
    backward: str  # the same when the derivative is at fault


def _domain(code: str, names: str, forward: str, backward: str) -> Domain:
    return Domain(code, frozenset(names.split()), forward, backward)


# Source: the derivative formulas in PyTorch's derivatives.yaml.
TABLE = (
    _domain("NP401", "log log2 log10 log1p xlogy special_xlog1py special_xlogy log_ndtr special_log_ndtr special_entr",
            "{name} of {value}", "the derivative of {name} at {value} is 1/0"),
    _domain("NP402", "sqrt rsqrt", "{name} of {value}", "the derivative of {name} at exactly 0 is infinite"),
    _domain("NP403", "pow float_power", "{value} to a power it has no value for",
            "the derivative of a power at exactly 0 is infinite"),
    _domain("NP404", "div true_divide divide reciprocal addcdiv", "division by {value}",
            "division by 0 in the gradient"),
    _domain("NP405", "norm linalg_vector_norm linalg_norm linalg_matrix_norm cdist cdist_forward euclidean_dist pdist "
            "pdist_forward dist frobenius_norm renorm pairwise_distance",
            "{name} of {value}", "the derivative of {name} at exactly 0 is 0/0"),
    _domain("NP406", "std var std_mean var_mean", "{name} of one element divides by 0",
            "the derivative of {name} of equal values is 0/0"),
    _domain("NP407", "softmax log_softmax logsumexp logcumsumexp safe_softmax softmax_backward_data "
            "log_softmax_backward_data scaled_dot_product_flash_attention scaled_dot_product_efficient_attention "
            "scaled_dot_product_flash_attention_for_cpu scaled_dot_product_attention_math scaled_dot_product_attention",
            "{name} over a row that is -Inf throughout", "{name} over a row that is -Inf throughout has no gradient"),
    _domain("NP409", "acos asin acosh atanh erfinv logit arccos arcsin arctanh special_logit special_erfinv ndtri "
            "special_ndtri", "{name} of {value}", "the derivative of {name} at {value} is infinite"),
    _domain("NP410", "atan2 angle hypot arctan2", "{name} at the origin",
            "the derivative of {name} near the origin divides by x² + y², which is 0 or subnormal"),
    _domain("NP411", "exp exp2 expm1 sinh cosh special_expit", "{name} of {value} leaves the range",
            "the gradient of {name} leaves the range"),
    _domain("NP412", "binary_cross_entropy", "a probability of {value}", "the derivative at a probability of 0 or 1"),
    _domain("NP413", "native_batch_norm batch_norm cudnn_batch_norm batch_norm_with_update native_batch_norm_legit "
            "instance_norm native_layer_norm native_group_norm native_batch_norm_backward layer_norm group_norm",
            "{name} of values with no variance", "the derivative of {name} of values with no variance"),
    _domain("NP414", "cosine_similarity normalize cosine_embedding_loss", "division by the length of a vector that is "
            "{value}", "the derivative of {name} at a vector of length 0"),
    _domain("NP415", "svd linalg_svd linalg_svdvals linalg_eigh linalg_eig linalg_eigvals linalg_eigvalsh linalg_qr "
            "linalg_cholesky linalg_cholesky_ex cholesky linalg_inv linalg_inv_ex inverse linalg_det linalg_slogdet "
            "logdet linalg_solve linalg_solve_ex linalg_lu linalg_lu_factor linalg_pinv matrix_exp linalg_lstsq det",
            "{name} of a singular matrix",
            "the gradient of {name} with equal (or zero) values divides by their difference"),
    _domain("NP416", "prod cumprod", "{name} of {value}", "the derivative of {name} with a factor of 0 is 0/0"),
    _domain("NP417", "lgamma digamma polygamma mvlgamma igamma igammac special_zeta binomial dirichlet standard_gamma "
            "standard_gamma_grad dirichlet_grad poisson", "{name} of {value}", "the derivative of {name} at {value}"),
    _domain("NP419", "remainder fmod floor_divide", "{name} by {value}", "the derivative of {name} there"),
    _domain("NP419", "sin cos tan", "{name} of {value}", "the derivative of {name} there"),
    _domain("NP408", "mul where masked_fill mm bmm addmm baddbmm mv dot matmul nan_to_num index_put masked_select",
            "0 times Inf", "0 times Inf in the gradient"),
    _domain("NP418", "add sub sum mean cumsum rsub", "Inf minus Inf", "Inf minus Inf in the gradient"),
)  # fmt: skip

_BY_NAME = {name: domain for domain in TABLE for name in domain.names}
_CATCH_ALL = Domain("NP400", frozenset(), "{name} has no finite result for {value}", "{name} has no finite derivative")

# Blow up because the input is large, not because it stands at an edge.
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "sinh", "cosh"})
# Have an edge only for some inputs; large inputs simply overflow in them.
_EDGE_BY_VALUE = frozenset({"NP403", "NP404"})
_ARITHMETIC = frozenset({"NP408", "NP418"})
# Below it a reciprocal is beyond 1e30: the divisor is at fault, not the size of what is divided. Our choice.
NEAR_ZERO = 1e-30
# Can outgrow the format with all their arguments well inside the domain: a product, a norm, a determinant.
_GROWING = frozenset({"NP405", "NP406", "NP415", "NP416", "NP417"})

# Averages whose result over nothing is 0/0.
AVERAGES = frozenset({
    "mean", "nll_loss_forward", "nll_loss", "nll_loss2d_forward", "nll_loss2d", "cross_entropy_loss", "mse_loss",
    "l1_loss",
    "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "median",
    "cross_entropy", "nll_loss_nd", "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss_forward",
})  # fmt: skip
NLL = frozenset(
    {"nll_loss_forward", "nll_loss", "nll_loss2d_forward", "nll_loss2d", "cross_entropy_loss", "cross_entropy"}
)
# Leave memory as it was: a NaN in their result is no calculation.
ALLOCATORS = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "resize"}
)
# Bring numbers in from a file or from memory that is not a tensor's.
LOADERS = frozenset({"set", "from_file", "lift_fresh", "lift_fresh_copy", "alias"})
CTC = frozenset({"ctc_loss", "cudnn_ctc_loss", "ctc_loss_backward"})

_SPELLING = {name.replace("_", ""): name for name in (*_BY_NAME, *AVERAGES, *NLL, *CTC)}


def names(op: OpRecord) -> tuple[str, ...]:
    """The names an operation goes by, the most telling first: its autograd node, then the operator."""
    found = [base_name(op.op)]
    if op.node and op.node != "AccumulateGrad":
        found.insert(0, node_name(op.node))
    suffixes = ("_backward_data", "_backward", "_forward")
    bare = [name.removesuffix(suffix) for name in found for suffix in suffixes if name.endswith(suffix)]
    return (*found, *bare)


def node_name(node: str) -> str:
    """An autograd node as its operator is spelt: "LinalgVectorNormBackward0" is "linalg_vector_norm"."""
    stem = re.sub(r"Backward\w*$", "", node)
    # Where words end is not always to be seen (Log1PBackward0, NllLoss2DBackward0): operators known here settle it.
    return _SPELLING.get(stem.lower()) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", stem).lower()


def domain_of(trail: Trail, origin: Origin) -> Domain:
    """The domain an origin's operation fell out of; the catch-all (NP400) where the table has no line for it."""
    return edge_of(trail, origin) or domain_named(names(_op(origin))) or _CATCH_ALL


def domain_named(known: tuple[str, ...]) -> Domain | None:
    """The table's line for the first of some names that has one."""
    return next((_BY_NAME[name] for name in known if name in _BY_NAME), None)


def domain_coded(code: str) -> Domain:
    """The table's (first) line with a code."""
    return next(domain for domain in TABLE if domain.code == code)


def edge_of(trail: Trail, origin: Origin) -> Domain | None:
    """The domain whose edge explains the origin whatever the number format; None when only magnitude can."""
    op = _op(origin)
    for name in names(op):
        domain = _BY_NAME.get(name)
        if domain is None or domain.code in _ARITHMETIC or domain.code == "NP411":
            continue
        if domain.code in _EDGE_BY_VALUE and not _at_edge(trail, op, origin.birth):
            continue
        if domain.code in _GROWING and origin.birth is Birth.INF and origin.precise and not op.node:
            continue
        return domain
    return None


def is_exponential(op: OpRecord) -> bool:
    """Whether the operation itself is exp or one of its kin."""
    return base_name(op.op) in EXPONENTIALS


def _at_edge(trail: Trail, op: OpRecord, birth: Birth) -> bool:
    """A quotient or power with no value: NaN from finite numbers, or a divisor or base that is 0 or next to it."""
    if birth is Birth.NAN:
        return True
    values = [real for specimen in op.specimens for real, _ in specimen.inputs]
    if not values:
        return any(record.zero_count for record in op.inputs)
    return min(abs(v) for v in values) < NEAR_ZERO


def _op(origin: Origin) -> OpRecord:
    assert origin.op is not None
    return origin.op

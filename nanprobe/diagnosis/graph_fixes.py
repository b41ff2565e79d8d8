"""What to write instead of a function that met the edge of its domain, in the words of who wrote it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Function:
    """One function: where its derivative ends, and how its argument is kept away from there."""

    edge: str  # the argument at which the derivative is not finite
    fix: str  # what to write, or to see to


def _same(edge: str, fix: str, *names: str) -> dict[str, Function]:
    return {name: Function(edge, fix.format(name=name)) for name in names}


# Source: the functions' definitions and the formulas in PyTorch's derivatives.yaml; 1e-6 to 1e-8 is our choice, large
# enough for FP32's 24 bits beside numbers near 1.
_FUNCTIONS: dict[str, Function] = {
    **_same("0", "write `torch.{name}(x.clamp(min=1e-7))`", "log", "log2", "log10"),
    **_same("-1", "write `torch.log1p(x.clamp(min=-1 + 1e-6))`", "log1p"),
    **_same("0", "write `torch.xlogy(x, y.clamp(min=1e-7))`", "xlogy", "special_xlogy"),
    **_same("0", "write `torch.special.entr(x.clamp(min=1e-7))`", "special_entr"),
    **_same("0", "write `torch.{name}(x.clamp(min=0) + 1e-8)`", "sqrt", "rsqrt"),
    **_same("0", "write `x.clamp(min=1e-7) ** p`", "pow", "float_power"),
    **_same("0", "write `a / b.clamp(min=1e-8)` where b cannot be negative, else `torch.where(b != 0, a / "
            "torch.where(b != 0, b, 1), 0)`", "div", "true_divide", "divide"),
    **_same("0", "write `1 / x.clamp(min=1e-8)` where x cannot be negative, else `torch.where(x != 0, 1 / "
            "torch.where(x != 0, x, 1), 0)`", "reciprocal"),
    **_same("0", "add a larger eps to the denominator", "addcdiv"),
    **_same("±1", "write `torch.{name}(x.clamp(-1 + 1e-6, 1 - 1e-6))`", "acos", "asin", "atanh", "erfinv",
            "special_erfinv"),
    **_same("1", "write `torch.acosh(x.clamp(min=1 + 1e-6))`", "acosh"),
    **_same("0 or 1", "write `torch.logit(x, eps=1e-6)`", "logit", "special_logit"),
    **_same("0 or 1", "write `torch.special.ndtri(x.clamp(1e-6, 1 - 1e-6))`", "ndtri", "special_ndtri"),
    **_same("the origin", "keep away from the origin, `torch.atan2(y, x + 1e-6)`, or leave such elements out of the "
            "loss", "atan2", "angle"),
    **_same("the origin", "write `torch.sqrt(x * x + y * y + 1e-12)`", "hypot"),
    **_same("large arguments", "bound the exponent, `torch.{name}(x.clamp(max=20))`", "exp", "exp2", "expm1"),
    **_same("large arguments", "bound the argument, `torch.{name}(x.clamp(-20, 20))`", "sinh", "cosh"),
    **_same("0", "write `torch.sqrt((x * x).sum(-1) + 1e-8)`, or keep vectors of length 0 out of the loss",
            "norm", "linalg_vector_norm", "linalg_norm", "frobenius_norm", "linalg_matrix_norm"),
    **_same("0", "keep equal points apart, or write `torch.sqrt(((a - b) ** 2).sum(-1) + 1e-8)`",
            "cdist", "cdist_forward", "euclidean_dist", "pdist", "pdist_forward", "dist", "pairwise_distance"),
    **_same("equal values", "write `torch.sqrt(x.var(unbiased=False) + 1e-6)`, and leave out what has fewer than 2 "
            "elements", "std", "var", "std_mean", "var_mean"),
    **_same("a factor of 0", "keep the factors away from 0, `x.clamp(min=1e-6)`, or take the product as "
            "`torch.exp(torch.log(x.clamp(min=1e-6)).sum(-1))`", "prod", "cumprod"),
    **_same("a vector of length 0", "write `F.normalize(x, dim=-1, eps=1e-4)` or `F.cosine_similarity(a, b, "
            "eps=1e-4)`, and look at why the vector is 0", "normalize", "cosine_similarity"),
    **_same("a row without variance", "give the layer an eps that is not 0 (1e-5), or more than one feature",
            "native_layer_norm", "layer_norm", "native_group_norm", "group_norm"),
    **_same("equal eigenvalues", "break the tie, `a + 1e-4 * torch.diag(torch.arange(n))`, or detach the vectors and "
            "keep the gradient of the values", "linalg_eigh", "linalg_eig", "linalg_svd", "svd"),
    **_same("a singular matrix", "add a small multiple of the identity, `a + 1e-6 * torch.eye(n)`",
            "linalg_cholesky", "linalg_cholesky_ex", "cholesky", "linalg_inv", "linalg_inv_ex", "inverse",
            "linalg_solve", "linalg_solve_ex", "linalg_det", "linalg_slogdet", "logdet", "det", "linalg_qr",
            "linalg_lu", "linalg_lu_factor", "linalg_pinv", "linalg_lstsq"),
    **_same("0", "keep the argument positive, `F.softplus(x) + 1e-4`", "lgamma", "digamma", "polygamma", "mvlgamma"),
    **_same("a divisor of 0", "keep the divisor away from 0", "remainder", "fmod", "floor_divide"),
    **_same("0 or 1", "use `F.binary_cross_entropy_with_logits` on the logits", "binary_cross_entropy"),
}  # fmt: skip

# Parameters and samples that a distribution of torch.distributions can do with, by the name of its module.
_DISTRIBUTIONS = {
    "normal": "keep `scale` away from 0: `F.softplus(x) + 1e-4`",
    "log_normal": "keep `scale` away from 0 (`F.softplus(x) + 1e-4`) and samples above 0",
    "laplace": "keep `scale` away from 0: `F.softplus(x) + 1e-4`",
    "multivariate_normal": "add a small multiple of the identity to the covariance",
    "beta": "keep samples inside (0, 1), `x.clamp(1e-6, 1 - 1e-6)`, and both concentrations positive, "
    "`F.softplus(x) + 1e-4`",
    "dirichlet": "keep samples inside the simplex (no component of exactly 0) and concentrations positive, "
    "`F.softplus(x) + 1e-4`",
    "gamma": "keep concentration and rate positive, `F.softplus(x) + 1e-4`, and samples above 0",
    "categorical": "leave at least one class possible: a finite logit, or a probability above 0, in every row",
    "one_hot_categorical": "leave at least one class possible: a finite logit, or a probability above 0, in every row",
    "multinomial": "leave at least one class possible: a finite logit, or a probability above 0, in every row",
    "bernoulli": "pass `logits=` instead of `probs=`, and samples of 0 or 1",
    "poisson": "keep the rate positive: `F.softplus(x) + 1e-4`",
}


def function_of(names: tuple[str, ...]) -> tuple[str, Function | None]:
    """The first of some names that has an entry, with it; the first name and None when none has."""
    found = next((name for name in names if name in _FUNCTIONS), None)
    return (names[0], None) if found is None else (found, _FUNCTIONS[found])


def fix_of(name: str) -> str:
    """What to write instead of a function that has an entry. Raises KeyError for another."""
    return _FUNCTIONS[name].fix


def as_written(name: str) -> str:
    """An operator as people call it: "linalg_inv_ex" is "linalg.inv"."""
    plain = name.removeprefix("native_").removesuffix("_ex")
    package = next((p for p in ("linalg", "special") if plain.startswith(f"{p}_")), None)
    return plain if package is None else plain.replace("_", ".", 1)


def distribution_fix(module: str) -> str:
    """What parameters and samples of a distribution must be like; `module` as in torch.distributions."""
    return _DISTRIBUTIONS.get(module, "keep its parameters and the samples inside what the distribution is defined for")


def class_name(module: str) -> str:
    """The class of a module of torch.distributions: "log_normal" holds LogNormal."""
    return "".join(part.capitalize() for part in module.split("_"))


def module_name(class_: str) -> str:
    """The module of a class of torch.distributions: LogNormal stands in "log_normal"."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in class_).lstrip("_")

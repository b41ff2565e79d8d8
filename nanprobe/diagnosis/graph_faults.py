"""A fault of the graph in its user's terms: which function it was, what it was given, and what to write instead.

PyTorch runs `F.normalize`, `(x - mean) / std` or `Normal.log_prob` as divisions and logarithms: what fed the operation
tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.diagnosis.graph_fixes import as_written, class_name, distribution_fix, fix_of, function_of
from nanprobe.diagnosis.graph_table import NEAR_ZERO, Domain, domain_coded, domain_named, domain_of, names
from nanprobe.diagnosis.origins import Origin, origin_op
from nanprobe.diagnosis.trail import Trail, base_name
from nanprobe.diagnosis.wording import figure
from nanprobe.records import InputRecord, OpRecord, Phase

# Read the value that matters last: a divisor, the argument of the logarithm in x log y.
_LAST = frozenset({"div", "true_divide", "divide", "addcdiv", "xlogy", "special_xlogy", "remainder", "fmod",
                   "floor_divide"})  # fmt: skip
_DIVISIONS = frozenset({"div", "true_divide", "divide", "reciprocal"})
# Hand on a length or a deviation that is 0 as 0.
_PASSED = frozenset({"clamp", "clamp_min", "maximum", "expand", "clone", "to_copy", "copy", "sqrt"})
_NORMS = frozenset({"linalg_vector_norm", "norm", "frobenius_norm"})
_DEVIATIONS = frozenset({"std", "var", "std_mean", "var_mean"})
_PRODUCTS = frozenset({"prod", "cumprod"})
_PLUS_EPS = "write `(x - x.mean()) / (x.std() + 1e-6)`, and look at why all values are equal"


@dataclass(frozen=True, slots=True)
class Fault:
    """What went out of its domain, and the way back in."""

    code: str
    function: str  # as the user calls it: "sqrt", "Normal"
    phrase: str  # "sqrt of -1"
    fix: str | None  # "write `torch.sqrt(...)`"; None where only the general advice holds


def fault_of(trail: Trail, origin: Origin) -> Fault:
    """The fault that an origin at an operation is."""
    op = origin_op(origin)
    plain = _plain(trail, origin)
    if op.distribution is not None:
        name = class_name(op.distribution)
        return Fault("NP417", name, f"{name}: {plain.phrase}", distribution_fix(op.distribution))
    return _quotient(trail, op) or _log_odds(trail, op) or plain


def in_backward(op: OpRecord) -> bool:
    """Whether the operation computes a derivative."""
    return op.phase is Phase.BACKWARD or (op.node is not None and op.node.rstrip("0123456789").endswith("Backward"))


def _plain(trail: Trail, origin: Origin) -> Fault:
    """The fault by the name of the operation alone; in a second derivative by that of the function itself."""
    op = origin_op(origin)
    domain, known = domain_of(trail, origin), names(op)
    whole = _of_a_function(trail, op)
    if whole is not None and domain.code in _OF_ANY_DERIVATIVE:
        domain, known = whole
    known = tuple(n for n in known if n in domain.names) or known
    name, function = function_of(known)
    return Fault(domain.code, name, _phrase(op, domain, known[0], name), None if function is None else function.fix)


def _of_a_function(trail: Trail, op: OpRecord) -> tuple[Domain, tuple[str, ...]] | None:
    """The function, more than a product or quotient, whose derivative an operation is a part of; its names."""
    forward = trail.forward_of(op) if in_backward(op) else None
    known = () if forward is None else names(forward)
    domain = domain_named(known)
    return None if domain is None or domain.code in _OF_ANY_DERIVATIVE else (domain, known)


# What the derivatives of other functions are made of.
_OF_ANY_DERIVATIVE = frozenset({"NP404", "NP408", "NP418"})


def _phrase(op: OpRecord, domain: Domain, name: str, function: str) -> str:
    name = as_written(name)
    if not in_backward(op):
        return domain.forward.format(name=name, value=_offending(op, function))
    known = function_of((function,))[1]
    return domain.backward.format(name=name, value=known.edge if known else "the edge of its domain")


def _offending(op: OpRecord, function: str) -> str:
    """The input value of the first element that went wrong."""
    values = [real for real, _ in op.specimens[0].inputs] if op.specimens else []
    if not values:
        return "what it was given"
    return figure(values[-1] if function in _LAST else values[0])


def _quotient(trail: Trail, op: OpRecord) -> Fault | None:
    """A division by a standard deviation, a length or a factor that is 0; None for any other operation."""
    if base_name(op.op) not in _DIVISIONS or not op.inputs or not _divides_by_zero(op) or _of_a_function(trail, op):
        return None
    made = _makers(trail, op, op.inputs[-1])
    if made and all(base_name(m.op) in _DEVIATIONS for m in made):
        return Fault("NP406", "std", "division by a standard deviation that is 0: all values are equal", _PLUS_EPS)
    if made and all(base_name(m.op) in _NORMS or _is_squares(trail, m) for m in made):
        return Fault("NP414", "normalize", "division by the length of a vector that is 0", fix_of("normalize"))
    numerator = trail.writers(op, op.inputs[0]) if len(op.inputs) > 1 else ()
    if any(base_name(w.op) in _PRODUCTS for w in numerator):
        return Fault("NP416", "cumprod", "a product divided by a factor that is 0", fix_of("cumprod"))
    return None


def _divides_by_zero(op: OpRecord) -> bool:
    values = [specimen.inputs[-1][0] for specimen in op.specimens if specimen.inputs]
    return bool(values) and min(abs(v) for v in values) < NEAR_ZERO


def _makers(trail: Trail, op: OpRecord, record: InputRecord) -> tuple[OpRecord, ...]:
    """The operations in which a divisor got its value, behind clamps, roots and copies, and both sides of a product."""
    found: list[OpRecord] = []
    stack = list(trail.writers(op, record))
    for _ in range(16):
        if not stack:
            break
        current = stack.pop()
        name = base_name(current.op)
        if name in _PASSED and current.inputs and not _is_squares(trail, current):
            stack += trail.writers(current, current.inputs[0])
        elif name == "mul" and len(current.inputs) == 2:
            stack += [w for r in current.inputs for w in trail.writers(current, r)]
        else:
            found.append(current)
    return tuple(found)


def _is_squares(trail: Trail, op: OpRecord) -> bool:
    """Whether the operation is the sum in sqrt(sum(x²)), or that root."""
    if base_name(op.op) == "sqrt" and op.inputs:
        return any(_is_squares(trail, w) for w in trail.writers(op, op.inputs[0]))
    if base_name(op.op) != "sum" or not op.inputs:
        return False
    return any(
        (base_name(w.op) == "pow" and 2.0 in w.scalars) or (base_name(w.op) in {"mul", "square"} and len(w.inputs) == 1)
        for w in trail.writers(op, op.inputs[0])
    )


def _log_odds(trail: Trail, op: OpRecord) -> Fault | None:
    """What `logits - logsumexp(logits)` makes of a row that is -Inf throughout; None for any other operation."""
    if base_name(op.op) != "sub" or in_backward(op):
        return None
    if not any(base_name(w.op) == "logsumexp" and _is_inf(w) for r in op.inputs for w in trail.writers(op, r)):
        return None
    return Fault("NP407", "logsumexp", domain_coded("NP407").forward.format(name="logsumexp"), None)


def _is_inf(op: OpRecord) -> bool:
    return any(s.inf_count for s in op.outputs)

"""Which expression of a line is the operation that a finding names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nanprobe.diagnosis.graph_table import TABLE, node_name
from nanprobe.diagnosis.trail import base_name
from nanprobe.findings import Finding
from nanprobe.remedies.script import Script, call_name

_OPERATORS: dict[type[ast.operator], frozenset[str]] = {
    ast.Mult: frozenset({"mul"}),
    ast.Add: frozenset({"add"}),
    ast.Sub: frozenset({"sub", "rsub"}),
    ast.Div: frozenset({"div", "true_divide", "reciprocal"}),
    ast.Pow: frozenset({"pow", "float_power"}),
    ast.MatMult: frozenset({"matmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm"}),
}
# Computed in low precision under autocast whatever their inputs are.
PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "mv", "matmul", "linear", "convolution", "einsum", "addmv"})
# Calls by names other than their operation's.
_ALIASES = {
    "linalg_vector_norm": {"norm", "vector_norm", "normalize", "pairwise_distance"},
    "linalg_norm": {"norm"},
    "linalg_matrix_norm": {"norm", "matrix_norm"},
    "norm": {"vector_norm", "pairwise_distance", "normalize", "dist"},
    "cdist_forward": {"cdist"},
    "euclidean_dist": {"cdist"},
    "pdist_forward": {"pdist"},
    "div": {"divide", "true_divide", "normalize", "cosine_similarity"},
    "var_mean": {"var", "std"},
    "std": {"std_mean"},
    "var": {"var_mean", "std"},
    "mul": {"multiply", "mul"},
    "mm": {"matmul", "mm", "linear", "einsum"},
    "bmm": {"matmul", "bmm", "einsum"},
    "linalg_svd": {"svd", "svdvals"},
    "_linalg_svd": {"svd", "svdvals"},
    "linalg_eigh": {"eigh", "eigvalsh"},
    "linalg_cholesky_ex": {"cholesky"},
    "linalg_inv_ex": {"inv", "inverse"},
    "xlogy": {"xlogy", "log_prob", "entr"},
    "nll_loss_forward": {"cross_entropy", "nll_loss"},
    "nll_loss": {"cross_entropy", "nll_loss"},
    "nll_loss2d_forward": {"cross_entropy", "nll_loss"},
    "log_softmax": {"cross_entropy", "log_softmax"},
    "_ctc_loss": {"ctc_loss"},
    "where": {"where", "masked_fill"},
    "clamp_min": {"normalize", "clamp", "clamp_min"},
    "add": {"normalize", "layer_norm", "batch_norm"},
}


def operation_names(finding: Finding) -> tuple[str, ...]:
    """What the operation at fault may be called in the user's code; the autograd node says most of a backward one."""
    found = []
    node = finding.evidence.get("node")
    if isinstance(node, str) and node != "AccumulateGrad":
        found.append(node_name(node))
    if finding.op:
        found.append(base_name(finding.op))
    bare = [re.sub(r"(_backward(_data)?|_forward)$", "", name).lstrip("_") for name in found]
    names = dict.fromkeys([*found, *bare])
    for name in list(names):
        names.update(dict.fromkeys(sorted(_ALIASES.get(name, ()))))
    return tuple(names)


def matches(script: Script, finding: Finding) -> list[ast.expr]:
    """The expressions of the finding's line that are its operation, the outermost first."""
    if finding.source is None:
        return []
    names = set(operation_names(finding)) or _of_the_code(finding.code)
    return [e for e in script.expressions(finding.source.line) if _names(e) & names]


def _of_the_code(code: str) -> set[str]:
    """What a finding without an operation may be about: the functions its code is for."""
    names = {name for domain in TABLE if domain.code == code for name in domain.names}
    return names | {alias for name in names for alias in _ALIASES.get(name, ())}


def _names(expression: ast.expr) -> frozenset[str]:
    if isinstance(expression, ast.Call):
        return frozenset({call_name(expression).rstrip("_")})
    if isinstance(expression, ast.BinOp):
        return _OPERATORS.get(type(expression.op), frozenset())
    return frozenset()


def operands(expression: ast.expr) -> Iterator[ast.expr]:
    """What an operation works on: both sides of an operator; the object of a method; the arguments of a function."""
    if isinstance(expression, ast.BinOp):
        yield expression.left
        yield expression.right
    elif isinstance(expression, ast.Call):
        if is_method(expression):
            assert isinstance(expression.func, ast.Attribute)
            yield expression.func.value
        yield from expression.args


def is_method(call: ast.Call) -> bool:
    """Whether a call is of a tensor's own method, and not of a function in a module such as torch or F."""
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    while isinstance(owner, ast.Attribute):
        owner = owner.value
    return not (isinstance(owner, ast.Name) and owner.id in _MODULES)


_MODULES = frozenset({"torch", "F", "nn", "functional", "special", "linalg", "math", "np", "numpy", "fn", "TF"})


def assigned_from(script: Script, name: ast.expr, line: int, *calls: str) -> ast.Assign | None:
    """The last statement before a line, in the same function, that gives a name the result of one of these calls."""
    if not isinstance(name, ast.Name):
        return None
    scope: ast.AST = script.function(line) or script.tree
    found = None
    for node in ast.walk(scope):
        if (
            isinstance(node, ast.Assign)
            and node.lineno < line
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == name.id
            and (found is None or node.lineno > found.lineno)
        ):
            found = node
    if found is None or not isinstance(found.value, ast.Call) or call_name(found.value) not in calls:
        return None
    return found

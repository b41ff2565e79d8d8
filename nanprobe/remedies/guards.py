"""Operations made safe: function -> how its inputs are kept inside its domain, as a change of the expression."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass

from nanprobe.remedies.editor import Editor, set_keywords
from nanprobe.remedies.matching import is_method, operands
from nanprobe.remedies.script import Script, call_name, keyword


@dataclass(frozen=True, slots=True)
class Scene:
    """Where a guard is put in."""

    editor: Editor
    low: bool  # the operation computes in half precision, whose small numbers end earlier

    @property
    def script(self) -> Script:
        """The file that is changed."""
        return self.editor.script

    def bound(self, full: str, half: str) -> str:
        """A bound as it fits the format."""
        return half if self.low else full


Guard = Callable[[Scene, ast.expr], bool]  # False: does not fit this expression


@dataclass(frozen=True, slots=True)
class Rule:
    """One way to make a family of operations safe."""

    names: frozenset[str]  # calls and operators ("div", "pow") it is for
    text: str  # what it does, for the report
    apply: Guard


def _first(expression: ast.expr) -> ast.expr | None:
    return next(operands(expression), None)


def _clamped(full: str, half: str) -> Guard:
    def apply(scene: Scene, expression: ast.expr) -> bool:
        operand, guard = _first(expression), f".clamp({scene.bound(full, half)})"
        if operand is None or scene.script.source(operand).endswith(guard):
            return False
        scene.editor.replace(operand, f"{scene.script.operand(operand)}{guard}")
        return True

    return apply


def _shifted(full: str, half: str) -> Guard:
    """Adds a number to the first operand; of two it is enough to move one."""

    def apply(scene: Scene, expression: ast.expr) -> bool:
        operand, guard = _first(expression), f" + {scene.bound(full, half)})"
        if operand is None or scene.script.source(operand).endswith(guard):
            return False
        scene.editor.replace(operand, f"({scene.script.source(operand)}{guard}")
        return True

    return apply


def _is_guarded(divisor: str) -> bool:
    """Whether an earlier remedy has been at a denominator."""
    return divisor.startswith("torch.where(") or re.search(r"\.clamp\(min=1e-[46]\)$", divisor) is not None


def _second_clamped(scene: Scene, expression: ast.expr) -> bool:
    """xlogy(x, y) -> y kept above 0."""
    parts, guard = list(operands(expression)), f".clamp(min={scene.bound('1e-6', '1e-4')})"
    if len(parts) < 2 or scene.script.source(parts[1]).endswith(guard):
        return False
    scene.editor.replace(parts[1], f"{scene.script.operand(parts[1])}{guard}")
    return True


def _with_a_key(scene: Scene, expression: ast.expr) -> bool:
    """Attention with a row in which every key is masked: there none is, and the row is as good as any."""
    if not isinstance(expression, ast.Call):
        return False
    mask = keyword(expression, "key_padding_mask")
    if mask is None or "~" in scene.script.source(mask.value):
        return False
    x = scene.script.operand(mask.value)
    scene.editor.replace(mask.value, f"{x} & ~{x}.all(-1, keepdim=True)")
    return True


def _denominator(template: str) -> Guard:
    def apply(scene: Scene, expression: ast.expr) -> bool:
        parts = list(operands(expression))
        divisor = parts[1] if len(parts) > 1 else parts[0] if parts else None
        if divisor is None or isinstance(divisor, ast.Constant) or _is_guarded(scene.script.source(divisor)):
            return False
        eps = scene.bound("1e-6", "1e-4")
        text = template.format(x=scene.script.operand(divisor), whole=scene.script.source(divisor), eps=eps)
        scene.editor.replace(divisor, text)
        return True

    return apply


def _population_std(scene: Scene, expression: ast.expr) -> bool:
    """Std -> the root of the biased variance plus eps: finite for one element and for equal ones."""
    if not isinstance(expression, ast.Call) or call_name(expression) not in ("std", "var"):
        return False
    script, eps = scene.script, scene.bound("1e-6", "1e-4")
    receiver, *rest = operands(expression)
    given = [script.source(a) for a in rest]
    named = [
        script.text[slice(*_keyword_span(script, k))]
        for k in expression.keywords
        if k.arg not in ("unbiased", "correction")
    ]
    arguments = ", ".join([*given, *named, "unbiased=False"])
    variance = f"{script.operand(receiver)}.var({arguments})"
    scene.editor.replace(expression, f"({variance} + {eps}).sqrt()" if call_name(expression) == "std" else variance)
    return True


def _keyword_span(script: Script, item: ast.keyword) -> tuple[int, int]:
    return script.span(item)


def _away_from_origin(scene: Scene, expression: ast.expr) -> bool:
    """atan2(y, x) -> both replaced where the point is next to the origin (the double `where`)."""
    if not isinstance(expression, ast.Call):
        return False
    parts = list(operands(expression))
    if len(parts) != 2:
        return False
    y, x = (scene.script.operand(p) for p in parts)
    eps = scene.bound("1e-6", "1e-3")
    near = f"({y}.abs() + {x}.abs()) < {eps}"
    scene.editor.replace(parts[0], f"torch.where({near}, torch.zeros_like({y}), {y})")
    scene.editor.replace(parts[1], f"torch.where({near}, torch.ones_like({x}), {x})")
    return True


def _with_keyword(**values: str) -> Guard:
    def apply(scene: Scene, expression: ast.expr) -> bool:
        if not isinstance(expression, ast.Call):
            return False
        set_keywords(scene.editor, expression, **values)
        return True

    return apply


def _wider_eps(scene: Scene, expression: ast.expr) -> bool:
    if not isinstance(expression, ast.Call):
        return False
    set_keywords(scene.editor, expression, eps=scene.bound("1e-6", "1e-4"))
    return True


def _apart(scene: Scene, expression: ast.expr) -> bool:
    """A matrix plus a small diagonal of different numbers, so that no two of its singular values are equal."""
    operand = _first(expression)
    if operand is None:
        return False
    x = scene.script.operand(operand)
    spread = f"torch.linspace(1e-3, 2e-3, min({x}.shape[-2:]), device={x}.device)"
    scene.editor.replace(operand, f"({scene.script.source(operand)} + torch.diag({spread}))")
    return True


def _counted(scene: Scene, expression: ast.expr) -> bool:
    """A mean cross-entropy -> the sum over the labels that count, divided by their number, at least 1."""
    if not isinstance(expression, ast.Call) or len(expression.args) < 2 or keyword(expression, "weight"):
        return False
    reduction = keyword(expression, "reduction")
    if reduction is not None:
        return False
    script = scene.script
    ignored = keyword(expression, "ignore_index")
    ignore = script.source(ignored.value) if ignored is not None else "-100"
    target = script.operand(expression.args[1])
    end = script.span(expression)[1]
    set_keywords(scene.editor, expression, reduction='"sum"')
    scene.editor.insert(script.span(expression)[0], "(")
    scene.editor.insert(end, f" / ({target} != {ignore}).sum().clamp(min=1))")
    return True


def _mean_of_some(scene: Scene, expression: ast.expr) -> bool:
    """x.mean() -> x.sum() divided by the number of elements, at least 1."""
    if not isinstance(expression, ast.Call) or call_name(expression) != "mean":
        return False
    if not is_method(expression) or expression.args or expression.keywords:
        return False
    receiver = next(operands(expression))
    x = scene.script.operand(receiver)
    scene.editor.replace(expression, f"({x}.sum() / max({x}.numel(), 1))")
    return True


def _summed_loss(scene: Scene, expression: ast.expr) -> bool:
    """F.mse_loss(a, b) -> its sum divided by the number of elements, at least 1."""
    if not isinstance(expression, ast.Call) or not expression.args or keyword(expression, "reduction"):
        return False
    script = scene.script
    first = script.operand(expression.args[0])
    end = script.span(expression)[1]
    set_keywords(scene.editor, expression, reduction='"sum"')
    scene.editor.insert(script.span(expression)[0], "(")
    scene.editor.insert(end, f" / max({first}.numel(), 1))")
    return True


def _rule(names: str, text: str, apply: Guard) -> Rule:
    return Rule(frozenset(names.split()), text, apply)


ATTENTION = Rule(frozenset(), "unmask rows in which every key is masked", _with_a_key)  # whatever the module is called
# Source: the derivative formulas in PyTorch's derivatives.yaml. The bounds are our choice: FP16 can hold those for FP32
# as well, so that a script mended in FP32 does not fail under autocast; derivatives stay below 1e6, or 1e4 in FP16.
RULES = (
    _rule("log log2 log10", "clamp the argument of the logarithm", _clamped("min=1e-6", "min=1e-4")),
    _rule("log1p", "clamp the argument of log1p above -1", _clamped("min=-1 + 1e-6", "min=-1 + 1e-3")),
    _rule("sqrt rsqrt", "clamp under the root", _clamped("min=1e-6", "min=1e-4")),
    _rule("pow float_power", "clamp the base of the power", _clamped("min=1e-6", "min=1e-3")),
    _rule(
        "div true_divide divide reciprocal", "keep the denominator away from 0", _denominator("{x}.clamp(min={eps})")
    ),
    _rule(
        "div true_divide divide reciprocal",
        "replace a denominator that is 0 (double where)",
        _denominator("torch.where({x}.abs() < {eps}, torch.full_like({x}, {eps}), {whole})"),
    ),
    _rule("norm vector_norm linalg_vector_norm", "keep the vector away from 0", _shifted("1e-6", "1e-4")),
    _rule("cdist pdist dist pairwise_distance", "keep equal points apart", _shifted("1e-6", "1e-3")),
    _rule("std var", "the biased variance, with eps under the root", _population_std),
    _rule("softmax log_softmax logsumexp", "a finite number for -Inf", _clamped("min=-1e30", "min=-3e4")),
    _rule(
        "acos asin atanh erfinv arccos arcsin arctanh",
        "clamp inside the domain",
        _clamped("-1 + 1e-6, 1 - 1e-6", "-1 + 1e-3, 1 - 1e-3"),
    ),
    _rule("acosh arccosh", "clamp above 1", _clamped("min=1 + 1e-6", "min=1 + 1e-3")),
    _rule("logit", "clamp inside (0, 1)", _clamped("1e-6, 1 - 1e-6", "1e-3, 1 - 1e-3")),
    _rule("atan2 arctan2 hypot", "keep away from the origin (double where)", _away_from_origin),
    _rule("exp expm1 sinh cosh", "bound the exponent", _clamped("max=20", "max=10")),
    _rule("exp2", "bound the exponent", _clamped("max=28", "max=14")),
    _rule("binary_cross_entropy", "clamp the probability inside (0, 1)", _clamped("1e-6, 1 - 1e-6", "1e-3, 1 - 1e-3")),
    _rule("normalize cosine_similarity cosine_embedding_loss", "a larger eps", _wider_eps),
    _rule("svd eigh eig svdvals eigvalsh cholesky inv inverse slogdet logdet", "keep singular values apart", _apart),
    _rule("xlogy xlog1py", "keep the argument of the logarithm above 0", _second_clamped),
    _rule("prod cumprod", "keep the factors away from 0", _clamped("min=1e-6", "min=1e-4")),
    _rule("cross_entropy nll_loss", "divide by the labels that count, at least 1", _counted),
    _rule("mean", "divide by the number of elements, at least 1", _mean_of_some),
    _rule("mse_loss l1_loss smooth_l1_loss huber_loss", "divide by the number of elements, at least 1", _summed_loss),
    _rule("ctc_loss CTCLoss", "leave out what no alignment can explain", _with_keyword(zero_infinity="True")),
)

"""What a script's syntax tree says about how it trains: its autocast, its GradScaler, its options. It is never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_SCALER_ARGUMENTS = ("device", "init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
_LOW = {"float16": "fp16", "half": "fp16", "bfloat16": "bf16"}
# How frameworks are asked for mixed precision. Source: the documentation of Transformers' TrainingArguments,
# Lightning's Trainer and Accelerate's Accelerator.
_FLAGS = {"fp16": "fp16", "bf16": "bf16"}
_WORDS = {"16-mixed": "fp16", "bf16-mixed": "bf16", "fp16": "fp16", "bf16": "bf16"}
_WORD_KEYS = ("precision", "mixed_precision")


@dataclass(frozen=True, slots=True)
class ScriptOption:
    """One option of the script's own command line."""

    name: str  # "--epochs"; without dashes where it is positional
    default: str | None  # as written; None where there is none
    required: bool


@dataclass(frozen=True, slots=True)
class ScriptHints:
    """What can be seen without running the script. Lines are None where nothing was seen."""

    autocast_line: int | None = None
    dtype: str | None = None  # "fp16" | "bf16", of autocast or of the whole model
    scaler_line: int | None = None
    scaler_settings: tuple[tuple[str, str], ...] = ()  # those written as numbers, as they are written
    half_line: int | None = None  # the model or its data are turned to low precision as a whole
    options: tuple[ScriptOption, ...] = ()


def read_hints(code: str) -> ScriptHints:
    """The hints in a script's text. Raises SyntaxError for what is no Python."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    autocast = next((call for call in calls if _name(call) == "autocast" or _framework_dtype(call)), None)
    scaler = next((call for call in calls if _name(call) == "GradScaler"), None)
    half = next((call for call in calls if _converts_to_low(call)), None)
    dtype = None
    if autocast is not None:
        dtype = _framework_dtype(autocast) or _dtype_in(autocast) or _default_dtype(autocast)
    elif half is not None:
        dtype = _dtype_in(half) or ("bf16" if _name(half) == "bfloat16" else "fp16")
    return ScriptHints(
        autocast_line=_line(autocast),
        dtype=dtype,
        scaler_line=_line(scaler),
        scaler_settings=() if scaler is None else tuple(_scaler_settings(scaler)),
        half_line=_line(half),
        options=tuple(option for call in calls if (option := _option(call)) is not None),
    )


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _line(call: ast.Call | None) -> int | None:
    return None if call is None else call.lineno


def _framework_dtype(call: ast.Call) -> str | None:
    for keyword in call.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg in _FLAGS and value is True:
            return _FLAGS[keyword.arg]
        if keyword.arg in _WORD_KEYS and isinstance(value, str) and value in _WORDS:
            return _WORDS[value]
    return None


def _dtype_in(call: ast.Call) -> str | None:
    """The first low-precision format named in a call's arguments."""
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        for node in ast.walk(argument):
            if isinstance(node, ast.Attribute) and node.attr in _LOW:
                return _LOW[node.attr]
    return None


def _default_dtype(autocast: ast.Call) -> str:
    """Source: torch.autocast: bfloat16 on the CPU, float16 elsewhere."""
    first = autocast.args[0] if autocast.args else None
    return "bf16" if isinstance(first, ast.Constant) and first.value == "cpu" else "fp16"


def _converts_to_low(call: ast.Call) -> bool:
    name = _name(call)
    return (name in ("half", "bfloat16") and not call.args) or (name == "to" and _dtype_in(call) is not None)


def _scaler_settings(call: ast.Call) -> Iterator[tuple[str, str]]:
    for name, value in (*zip(_SCALER_ARGUMENTS, call.args, strict=False), *((k.arg, k.value) for k in call.keywords)):
        if name in _SCALER_ARGUMENTS[1:-1] and _is_number(value):
            yield str(name), ast.unparse(value)


def _is_number(node: ast.expr) -> bool:
    """A number, or one worked out of numbers: `2.0 ** 16`."""
    kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    return all(isinstance(part, kinds) for part in ast.walk(node)) and not isinstance(node, ast.UnaryOp)


def _option(call: ast.Call) -> ScriptOption | None:
    """An option of argparse or click."""
    if _name(call) not in ("add_argument", "option"):
        return None
    names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not names:
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    default, required = keywords.get("default"), keywords.get("required")
    long = next((name for name in names if name.startswith("--")), names[0])
    positional = not long.startswith("-")
    optional = isinstance(nargs := keywords.get("nargs"), ast.Constant) and nargs.value in ("?", "*")
    return ScriptOption(
        name=long,
        default=None if default is None else ast.unparse(default),
        required=(positional and not optional) or (isinstance(required, ast.Constant) and required.value is True),
    )

"""A first recipe for a script, with a comment at every key: what `nanprobe init` writes."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from nanprobe.recipe.building import build_recipe
from nanprobe.recipe.hints import ScriptHints, ScriptOption
from nanprobe.recipe.model import Recipe

_PLAIN = re.compile(r"[A-Za-z./_-][\w./=-]*")  # needs no quotes in YAML, also inside of a list
_HIDDEN = re.compile("[\u007f-\u009f\u2028\u2029\ufeff]")  # plain in JSON, and no part of a line in YAML
_WORDS = ("null", "true", "false", "yes", "no", "on", "off")
_WIDTH = 100
_SHOWN_OPTIONS = 12
_WHY_FP32 = "fp32 runs first and tells bad data and faults of the graph from those of low precision."


def write_draft(
    target: str, path: Path, hints: ScriptHints, args: tuple[str, ...], *, is_module: bool = False
) -> tuple[str, Recipe]:
    """The text of a recipe that is to be the file `path`, and the recipe it means; `target` as seen from there.

    Raises RecipeInvalid, as the file itself would, when the target lies outside of its repository.
    """
    shown = _one_line(target)
    parts = [
        _comment(
            f"A check of {shown}: `nanprobe check` runs it and compares the verdict with `expect`.\n"
            f"The whole report: `nanprobe diagnose --recipe {_one_line(path.name)}`.\n"
            "What is commented out is optional."
        ),
        f"{'module' if is_module else 'target'}: {_quote(target)}",
        _arguments(hints, args),
        _stages(hints),
        _scaler(hints),
        _LIMITS,
        _EXPECT,
    ]
    text = "\n\n".join(parts) + "\n"
    recipe = build_recipe(text, path)
    assert ((recipe.module if is_module else recipe.target), recipe.args) == (target, args), text
    return text, recipe


def _arguments(hints: ScriptHints, args: tuple[str, ...]) -> str:
    lines = "What the script gets on its command line. Keep it small: a check ought to take seconds."
    required = [option for option in hints.options if option.required]
    if hints.options:
        shown = ", ".join(map(_describe, hints.options[:_SHOWN_OPTIONS]))
        more = ", ..." if len(hints.options) > _SHOWN_OPTIONS else ""
        lines += f"\nIt takes {shown}{more}."
    if required and not args:
        lines += f"\nIt cannot run without {', '.join(_one_line(option.name) for option in required)}: fill it in."
    return f"{_comment(lines)}\nargs: [{', '.join(map(_quote, args))}]"


def _describe(option: ScriptOption) -> str:
    name = _one_line(option.name)
    return name if option.default is None else f"{name} ({_one_line(option.default)})"


def _stages(hints: ScriptHints) -> str:
    said, stages = _explain_stages(hints)
    dtype = "dtype: bf16" if hints.dtype == "bf16" else "# dtype: fp16"
    settings = [
        "steps: 50 # optimizer steps of each stage; raise it until the loss falls",
        f"stages: [{', '.join(stages)}]",
        dtype,
        "seed: 0 # of torch, numpy and random, before each stage",
        "# device: auto # without a GPU, FP16 is emulated as CUDA would compute it",
        "# timeout: 600 # seconds a stage",
    ]
    return "\n".join([_comment(said), *settings])


def _explain_stages(hints: ScriptHints) -> tuple[str, tuple[str, ...]]:
    name = {"fp16": "float16", "bf16": "bfloat16", None: ""}[hints.dtype]
    if hints.autocast_line is not None:
        said = f"The script computes under autocast, in {name} (line {hints.autocast_line}): its own stage is amp."
        return f"{said}\n{_WHY_FP32}", ("fp32", "amp")
    if hints.half_line is not None:
        said = f"The script holds numbers in {name} (line {hints.half_line}): its own stage is fp16."
        return f"{said}\n{_WHY_FP32}", ("fp32", "fp16")
    return (
        "No autocast was seen in the script: in the amp stage it is put around it, with a GradScaler.\n"
        "Leave amp out if the script will never train in low precision.",
        ("fp32", "amp"),
    )


def _scaler(hints: ScriptHints) -> str:
    defaults = {"init_scale": "2**16", "growth_factor": "2", "backoff_factor": "0.5", "growth_interval": "2000"}
    said = "No GradScaler was seen in the script; where one is put around it, these are PyTorch's defaults."
    if hints.scaler_line is not None:
        said = f"The script's GradScaler (line {hints.scaler_line}) keeps its settings unless you give others here."
    values = {**defaults, **{name: _one_line(value) for name, value in hints.scaler_settings}}
    lines = [f"#   {name}: {value}" for name, value in values.items()]
    return "\n".join([_comment(said), "# scaler:", *lines])


_LIMITS = """\
# Limits besides the verdict, each in the script's own low precision.
# limits:
#   max_skipped_steps: 5 # a scaler skips a few steps while it finds its scale
#   max_flushed_fraction: 0.01 # of any gradient's elements that become 0 in FP16
#   min_headroom_bits: 1 # doublings until the largest gradient overflows
#   max_seconds: 60"""

_EXPECT = """\
# What fails a healthy run: error, warning, note, kinds of findings, or none.
# fail_on: error

expect: healthy
# A script that has to fail, to keep a known fault from hiding, says how:
# expect:
#   kind: overflow
#   code: NP101
#   place: {line: 41, module: 'encoder'}"""


def _comment(text: str) -> str:
    lines = [wrapped for line in text.split("\n") for wrapped in textwrap.wrap(line, _WIDTH - 2)]
    return "\n".join(f"# {line}" for line in lines)


def _one_line(text: str) -> str:
    """The text in a comment: no line break, nothing that YAML would refuse."""
    return "".join(c if c.isprintable() else " " for c in text)[:80]


def _quote(text: str) -> str:
    """The text as a YAML value that means exactly it."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))

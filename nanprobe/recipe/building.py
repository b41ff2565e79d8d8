"""From a recipe's file to a Recipe. All that is wrong with it is said at once, each problem with its path and line."""

from __future__ import annotations

import re
from pathlib import Path

from nanprobe.catalogue import CATALOGUE
from nanprobe.errors import RecipeInvalid, UsageError
from nanprobe.fail_on import FailOn
from nanprobe.findings import Kind, Status
from nanprobe.notation import DTYPES
from nanprobe.plan import ScalerSettings
from nanprobe.recipe.model import Expectation, Limits, Place, Recipe, SweepExpectation
from nanprobe.recipe.paths import explain_outside
from nanprobe.recipe.reading import parse_yaml, read_file
from nanprobe.recipe.section import Problems, Section
from nanprobe.records import StageName

KEYS = {
    "": (
        "about", "target", "module", "args", "steps", "stages", "dtype", "seed", "device", "timeout", "scaler",
        "limits", "fail_on", "expect",
    ),
    "scaler": ("init_scale", "growth_factor", "backoff_factor", "growth_interval"),
    "limits": ("max_skipped_steps", "max_flushed_fraction", "min_headroom_bits", "max_seconds"),
    "expect": ("status", "kind", "code", "stage", "step", "place", "sweep_scale"),
    "expect.place": ("line", "file", "module", "parameter"),
    "expect.sweep_scale": (
        "status", "lowest_scale", "highest_scale", "low_set_by", "high_set_by", "overflowing_layer", "needing_layer",
    ),
}  # fmt: skip
EVERYWHERE = tuple(f"{path}.{key}".lstrip(".") for path, keys in KEYS.items() for key in keys)

_KINDS = {kind.value: kind for kind in Kind}
_STATUSES = {status.value: status for status in Status}
_STAGES = {stage.value: stage for stage in StageName}
_DEVICES = {name: name for name in ("auto", "cpu", "cuda")}
_CODES = {code.lower(): code for code in CATALOGUE}
_MAX_SCALE = 2.0**127  # a GradScaler keeps its scale in FP32
_MAX_SEED = 2**64 - 1  # Source: torch.manual_seed
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def read_recipe(path: Path, *, name: str | None = None, shown: str | None = None) -> Recipe:
    """The recipe in a file. Raises RecipeInvalid, with a line for each problem; `shown` is the file's name in them."""
    shown = shown or str(path)
    return build_recipe(read_file(path, shown), path, name=name, shown=shown)


def build_recipe(text: str, path: Path, *, name: str | None = None, shown: str | None = None) -> Recipe:
    """The recipe in a text that is, or is to be, the file `path`. Raises RecipeInvalid."""
    shown = shown or str(path)
    problems = Problems(shown)
    root = Section(parse_yaml(text, shown), "", problems)
    root.check_keys(KEYS[""], EVERYWHERE)
    stages = root.choices("stages", _STAGES)
    limits = _limits(root, stages)
    recipe = Recipe(
        name=name or name_of(path),
        path=path,
        about=root.text("about"),
        target=_target(root, path.parent),
        module=_module(root),
        args=root.arguments("args"),
        steps=root.whole("steps", "a positive number of steps", lambda n: n >= 1),
        stages=tuple(stage for stage in StageName if stage in stages) or None,
        dtype=root.choice("dtype", DTYPES),
        seed=root.whole("seed", "a whole number from 0 to 2**64 - 1", lambda n: 0 <= n <= _MAX_SEED),
        device=root.choice("device", _DEVICES),
        timeout=root.number("timeout", "a number of seconds above 0", lambda x: x > 0),
        scaler=_scaler(root),
        limits=limits,
        fail_on=_fail_on(root),
        expect=_expect(root, limits),
    )
    if lines := problems.lines():
        raise RecipeInvalid("\n".join(lines))
    return recipe


def name_of(path: Path) -> str:
    """What a recipe is called: its folder where the file is a `recipe.yaml`, else the file without its endings."""
    if path.stem in ("recipe", "nanprobe"):
        return path.absolute().parent.name or path.stem
    return path.stem.removesuffix(".recipe")


def _target(root: Section, folder: Path) -> str | None:
    target = root.text("target", "the path of a script")
    if target is not None and (problem := explain_outside(target, folder)):
        root.refuse("target", problem)
    return target


def _module(root: Section) -> str | None:
    module = root.text("module", "a module's dotted name")
    if module is not None and not _MODULE.fullmatch(module):
        root.refuse("module", f"{module} is not a module's dotted name, like package.train")
    if module is not None and root.has("target"):
        root.refuse("module", "target is given too; a recipe runs one of the two")
    return module


def _scaler(root: Section) -> ScalerSettings:
    scaler = root.section("scaler")
    if scaler is None:
        return ScalerSettings()
    scaler.check_keys(KEYS["scaler"], EVERYWHERE)
    return ScalerSettings(
        init_scale=scaler.number("init_scale", "a loss scale above 0, in FP32's range", lambda x: 0 < x <= _MAX_SCALE),
        growth_factor=scaler.number("growth_factor", "a factor above 1", lambda x: x > 1),
        backoff_factor=scaler.number("backoff_factor", "a factor between 0 and 1", lambda x: 0 < x < 1),
        growth_interval=scaler.whole("growth_interval", "a positive number of steps", lambda n: n >= 1),
    )


def _limits(root: Section, stages: tuple[StageName, ...]) -> Limits:
    section = root.section("limits")
    if section is None:
        return Limits()
    section.check_keys(KEYS["limits"], EVERYWHERE)
    limits = Limits(
        max_skipped_steps=section.whole("max_skipped_steps", "a number of steps, 0 or more", lambda n: n >= 0),
        max_flushed_fraction=section.number("max_flushed_fraction", "a share from 0 to 1", lambda x: 0 <= x <= 1),
        min_headroom_bits=section.number("min_headroom_bits", "a number of bits", lambda x: True),
        max_seconds=section.number("max_seconds", "a number of seconds above 0", lambda x: x > 0),
    )
    if stages == (StageName.FP32,) and limits.needs_low_precision():
        root.refuse("limits", "only max_seconds can be measured in the fp32 stage; add amp to stages")
    return limits


def _fail_on(root: Section) -> str | None:
    words = {word: word for word in ("error", "warning", "note", *_KINDS, "none")}
    chosen = ",".join(root.choices("fail_on", words))
    try:
        FailOn.parse(chosen)
    except UsageError as error:  # cannot be, as long as the words above are its own
        root.refuse("fail_on", str(error))
    return chosen or None


def _expect(root: Section, limits: Limits) -> Expectation:
    if root.is_word("expect"):
        return Expectation(root.choice("expect", _STATUSES) or Status.HEALTHY)
    expect = root.section("expect")
    if expect is None:
        return Expectation()
    expect.check_keys(KEYS["expect"], EVERYWHERE)
    of_verdict = [key for key in KEYS["expect"] if key not in ("status", "sweep_scale") and expect.has(key)]
    status = expect.choice("status", _STATUSES)
    if status in (Status.HEALTHY, Status.INCONCLUSIVE) and of_verdict:
        expect.refuse("status", f"a run that is {status.value} has no verdict, so no {' and no '.join(of_verdict)}")
    sweep = _sweep(expect)
    default = Status.FAILING if of_verdict else Status.HEALTHY
    return Expectation(
        status=status or default,
        kinds=expect.choices("kind", _KINDS),
        codes=expect.choices("code", _CODES, "the code of a finding, like NP101"),
        stages=expect.choices("stage", _STAGES),
        steps=expect.wholes("step", "the number of a step, counted from 0", lambda n: n >= -1),
        place=_place(expect),
        sweep=sweep,
        wants_diagnosis=bool(sweep is None or status or of_verdict or limits.needs_low_precision()),
    )


def _place(expect: Section) -> Place:
    place = expect.section("place")
    if place is None:
        return Place()
    place.check_keys(KEYS["expect.place"], EVERYWHERE)
    return Place(
        lines=place.wholes("line", "a line's number, counted from 1", lambda n: n >= 1),
        file=place.pattern("file"),
        module=place.pattern("module"),
        parameter=place.pattern("parameter"),
    )


def _sweep(expect: Section) -> SweepExpectation | None:
    if expect.has("sweep_scale") and expect.is_word("sweep_scale"):
        status = expect.choice("sweep_scale", _STATUSES)
        return None if status is None else SweepExpectation(status)
    sweep = expect.section("sweep_scale")
    if sweep is None:
        return None
    sweep.check_keys(KEYS["expect.sweep_scale"], EVERYWHERE)
    return SweepExpectation(
        status=sweep.choice("status", _STATUSES),
        lowest_scale=sweep.numbers("lowest_scale", "a loss scale above 0", lambda x: x > 0),
        highest_scale=sweep.numbers("highest_scale", "a loss scale above 0", lambda x: x > 0),
        low_set_by=sweep.pattern("low_set_by"),
        high_set_by=sweep.pattern("high_set_by"),
        overflowing_layer=sweep.pattern("overflowing_layer"),
        needing_layer=sweep.pattern("needing_layer"),
    )

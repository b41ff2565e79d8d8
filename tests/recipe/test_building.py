"""Recipes from text: what a good one means, and every way to write a bad one, each with its path and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanprobe.errors import ExitCode, RecipeInvalid
from nanprobe.findings import Kind, Status
from nanprobe.plan import ScalerSettings
from nanprobe.recipe import Place, Recipe, SweepExpectation, build_recipe, read_recipe
from nanprobe.recipe.reading import MAX_BYTES
from nanprobe.records import StageName


def build(text: str) -> Recipe:
    return build_recipe(text, Path("checks/recipe.yaml"), shown="recipe.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(RecipeInvalid) as raised:
        build(text)
    assert raised.value.exit_code is ExitCode.USAGE
    lines = str(raised.value).splitlines()
    assert all(line.startswith("recipe.yaml: ") for line in lines)
    return [line.removeprefix("recipe.yaml: ") for line in lines]


FULL = """\
about: Scores overflow
target: train.py
args: [--lr, 1e-3, --flag, no, 010, ""]
steps: 2e1
stages: [amp, fp32]
dtype: bf16
seed: 7
device: cpu
timeout: 60
scaler: {init_scale: 2**16, growth_factor: 1.5, backoff_factor: 0.25, growth_interval: 1_000}
limits: {max_skipped_steps: 2, max_flushed_fraction: 1e-3, min_headroom_bits: 1, max_seconds: 15}
fail_on: [warning, data]
expect:
  kind: [overflow, divergence]
  code: np101
  stage: amp
  step: [3, 4]
  place: {line: 27, file: train, module: 'layers\\.\\d+', parameter: weight$}
  sweep_scale: {status: failing, lowest_scale: 2^4, highest_scale: [65536, 2**17]}
"""


def test_everything_a_recipe_can_say() -> None:
    recipe = build(FULL)
    assert recipe.name == "checks" and recipe.about == "Scores overflow"
    assert (recipe.target, recipe.module) == ("train.py", None)
    assert recipe.args == ("--lr", "1e-3", "--flag", "no", "010", "")
    assert recipe.settings() == {
        "steps": 20,
        "stages": (StageName.FP32, StageName.AMP),
        "dtype": "bfloat16",
        "seed": 7,
        "device": "cpu",
        "timeout": 60,
        "init_scale": 65536.0,
        "growth_factor": 1.5,
        "backoff_factor": 0.25,
        "growth_interval": 1000,
    }
    expect = recipe.expect
    assert (expect.status, expect.kinds, expect.codes) == (
        Status.FAILING,
        (Kind.OVERFLOW, Kind.DIVERGENCE),
        ("NP101",),
    )
    assert (expect.stages, expect.steps) == ((StageName.AMP,), (3, 4))
    assert expect.place == Place((27,), "train", r"layers\.\d+", "weight$")
    assert expect.sweep == SweepExpectation(Status.FAILING, (16.0,), (65536.0, 2.0**17))
    assert expect.wants_diagnosis


def test_what_is_not_said_is_left_open() -> None:
    recipe = build("target: train.py\nsteps:\nscaler: ~\n")
    assert recipe.settings() == {}
    assert recipe.expect.status is Status.HEALTHY and recipe.expect.wants_diagnosis
    assert recipe.scaler == ScalerSettings()


def test_a_sweep_alone_needs_no_diagnosis() -> None:
    assert not build("target: a.py\nexpect: {sweep_scale: healthy}\n").expect.wants_diagnosis
    assert build("target: a.py\nexpect: {status: healthy, sweep_scale: healthy}\n").expect.wants_diagnosis
    assert build(
        "target: a.py\nexpect: {sweep_scale: healthy}\nlimits: {max_skipped_steps: 0}\n"
    ).expect.wants_diagnosis


@pytest.mark.parametrize("text", ["65536", "65_536", "2**16", "2^16", "2 ** 16", "6.5536e4", "'65536'", "65536.0"])
def test_numbers_as_people_write_them(text: str) -> None:
    assert build(f"scaler: {{init_scale: {text}}}").scaler.init_scale == 65536


def test_all_problems_are_said_at_once_in_the_order_of_the_file() -> None:
    text = "steps: 0\nscaler:\n  growth_interval: -5\n  growth_intervall: 3\nexpect:\n  kind: [overflow, overfow]\n"
    assert problems(text) == [
        "steps: 0 is not a positive number of steps (line 1)",
        "scaler.growth_interval: -5 is not a positive number of steps (line 3)",
        "scaler.growth_intervall: no such key; did you mean growth_interval? (line 4)",
        "expect.kind[1]: overfow is not one of overflow, underflow, data, graph, divergence, misuse (line 6)",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("growth_interval: 3", "growth_interval: no such key; did you mean scaler.growth_interval? (line 1)"),
        ("kind: overflow", "kind: no such key; did you mean expect.kind? (line 1)"),
        ("wibble: 3", "wibble: no such key; expected some of about, target, module, args, steps"),
        ("steps: many", "steps: many is not a positive number of steps (line 1)"),
        ("steps: 2.5", "steps: 2.5 is not a positive number of steps"),
        ("steps: [1]", "steps: a list is not a positive number of steps"),
        ("steps: .inf", "steps: .inf is not a positive number of steps"),
        ("steps: 9**999", "steps: 9**999 is not a positive number of steps"),
        ("seed: -1", "seed: -1 is not a whole number from 0 to 2**64 - 1"),
        ("stages: fp8", "stages: fp8 is not one of fp32, fp16, amp"),
        ("stages: [fp32, ]\ndtype: fp8", "dtype: fp8 is not one of fp16, float16, bf16, bfloat16"),
        ("device: tpu", "device: tpu is not one of auto, cpu, cuda"),
        ("timeout: 0", "timeout: 0 is not a number of seconds above 0"),
        ("scaler: 3", "scaler: 3 is not a mapping of keys and values"),
        ("scaler: {init_scale: 1e39}", "scaler.init_scale: 1e39 is not a loss scale above 0, in FP32's range"),
        ("scaler: {growth_factor: 1}", "scaler.growth_factor: 1 is not a factor above 1"),
        ("scaler: {backoff_factor: 2}", "scaler.backoff_factor: 2 is not a factor between 0 and 1"),
        ("limits: {max_flushed_fraction: 5%}", "limits.max_flushed_fraction: 5% is not a share from 0 to 1"),
        ("limits: {max_skipped_steps: -1}", "limits.max_skipped_steps: -1 is not a number of steps, 0 or more"),
        ("stages: fp32\nlimits: {min_headroom_bits: 1}", "limits: only max_seconds can be measured in the fp32 stage"),
        ("fail_on: misery", "fail_on: misery is not one of error, warning, note, overflow"),
        ("expect: helthy", "expect: helthy is not one of failing, healthy, inconclusive"),
        ("expect: {status: healthy, code: NP101}", "expect.status: a run that is healthy has no verdict, so no code"),
        ("expect: {code: NP999}", "expect.code: NP999 is not the code of a finding, like NP101"),
        ("expect: {place: {module: '['}}", "expect.place.module: [ is not a regular expression"),
        ("expect: {place: {line: 0}}", "expect.place.line: 0 is not a line's number, counted from 1"),
        ("expect: {sweep_scale: {lowest_scale: none}}", "expect.sweep_scale.lowest_scale: none is not a loss scale"),
        ("about: |\n  two\n  lines\n", "about: 'two\\nlines\\n' is not a text on one line"),
        ("args: 'a \"b'", "args: a \"b is no list of arguments (no closing quotation)"),
        ("args: {a: b}", "args: a mapping is not a list of arguments, like [--epochs, 1]"),
        ("args: [[a]]", "args[0]: a list is not a list of arguments"),
        ("module: a/b.py", "module: a/b.py is not a module's dotted name, like package.train"),
        ("target: a.py\nmodule: b", "module: target is given too; a recipe runs one of the two"),
        ("target: /etc/passwd", "target: /etc/passwd is an absolute path; name the script relative to the recipe"),
        ("target: 'C:\\train.py'", "is an absolute path"),
        ("target: ~/train.py", "is an absolute path"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert message in problem


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; a recipe says for example `target: train.py`"),
        ("# nothing\n", "is empty"),
        ("---\n...\n", "is empty"),
        ("- target", "holds a list; a recipe is keys and values"),
        ("train.py", "holds the text 'train.py'"),
        ("a: [", "line 1, column 5: no valid YAML while parsing a flow node"),
        ("a:\n\tb: 1", "found character '\\t' that cannot start any token; indent with spaces"),
        ("a: b: c", "line 1, column 5: no valid YAML: mapping values are not allowed here"),
        ("steps: 1\nsteps: 2", "line 2, column 1: the key 'steps' is given twice"),
        ("scaler: {init_scale: 1, init_scale: 2}", "line 1, column 25: the key 'init_scale' is given twice"),
        ("steps: !!python/object/apply:os.system [ls]", "line 1, column 8: the tag !!python/object/apply:os.system"),
        ("steps: !env STEPS", "line 1, column 8: the tag !env: tags are refused"),
        ("a: &x [1]\nb: *x", "line 1, column 4: the anchor &x: anchors are refused; write the value out"),
        ("b: *x", "line 1, column 4: the alias *x: aliases are refused"),
        ("? [a]\n: 1", "line 1, column 3: a list or a mapping stands where a key should be"),
        ("a: " + "[" * 5000, "line 1, column 11: nested deeper than 8 levels"),
        ("a: 1\n---\nb: 2", "line 2, column 1: a second document begins here"),
        ("a: \0", "no valid YAML: unacceptable character #x0000"),
    ],
)
def test_what_is_no_recipe_at_all(text: str, message: str) -> None:
    (problem,) = problems(text)
    assert message in problem


def test_files_that_cannot_be_recipes(tmp_path: Path) -> None:
    def complaint(name: str) -> str:
        with pytest.raises(RecipeInvalid) as raised:
            read_recipe(tmp_path / name, shown=name)
        return str(raised.value)

    (tmp_path / "huge.yaml").write_text("#" * 10_000_000)
    (tmp_path / "latin.yaml").write_bytes("about: caf\xe9".encode("latin-1"))
    assert complaint("none.yaml") == "none.yaml: no such file"
    assert complaint(".") == ".: is not a regular file; give a recipe"
    assert complaint("huge.yaml") == f"huge.yaml: is 10,000,000 bytes long; a recipe has at most {MAX_BYTES:,}"
    assert complaint("latin.yaml") == "latin.yaml: is no text in UTF-8 (byte 10); give a recipe"


def test_a_target_stays_in_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "checks"
    folder.mkdir(parents=True)

    def target(text: str) -> str | None:
        return build_recipe(f"target: {text}", folder / "recipe.yaml").target

    with pytest.raises(RecipeInvalid, match="leads outside of the recipe's folder"):
        target("../train.py")
    (tmp_path / "repository" / ".git").mkdir()
    assert target("../train.py") == "../train.py"
    with pytest.raises(RecipeInvalid, match="leads outside of the repository"):
        target("../../train.py")
    (folder / "link.py").symlink_to(tmp_path / "elsewhere.py")
    with pytest.raises(RecipeInvalid, match=r"leads outside of the repository .*, to .*elsewhere\.py"):
        target("link.py")


def test_names() -> None:
    def name(path: str) -> str:
        return build_recipe("steps: 1", Path(path)).name

    assert name("recipes/tiny-gradient/recipe.yaml") == "tiny-gradient"
    assert name("recipes/scenarios/transformer.yaml") == "transformer"
    assert name("smoke.recipe.yaml") == "smoke"

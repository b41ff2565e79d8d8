"""What `nanprobe init` reads off a script, and that what it writes means what it read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanprobe.errors import RecipeInvalid
from nanprobe.recipe.draft import write_draft
from nanprobe.recipe.hints import ScriptHints, ScriptOption, read_hints
from nanprobe.records import StageName

AMP = """\
parser.add_argument("data")
parser.add_argument("-e", "--epochs", type=int, default=10)
parser.add_argument("--config", required=True)
scaler = torch.amp.GradScaler("cuda", 2.0 ** 12, growth_interval=interval, backoff_factor=0.25)
with torch.autocast("cuda", dtype=torch.float16):
    pass
"""


def test_hints_of_an_amp_script() -> None:
    assert read_hints(AMP) == ScriptHints(
        autocast_line=5,
        dtype="fp16",
        scaler_line=4,
        scaler_settings=(("init_scale", "2.0 ** 12"), ("backoff_factor", "0.25")),
        options=(
            ScriptOption("data", None, True),
            ScriptOption("--epochs", "10", False),
            ScriptOption("--config", None, True),
        ),
    )


@pytest.mark.parametrize(
    ("code", "dtype", "stages"),
    [
        ("with torch.autocast('cuda', torch.bfloat16): pass", "bf16", (StageName.FP32, StageName.AMP)),
        ("with torch.autocast('cpu'): pass", "bf16", (StageName.FP32, StageName.AMP)),
        ("with torch.cuda.amp.autocast(): pass", "fp16", (StageName.FP32, StageName.AMP)),
        ("Trainer(precision='bf16-mixed')", "bf16", (StageName.FP32, StageName.AMP)),
        ("TrainingArguments(fp16=True)", "fp16", (StageName.FP32, StageName.AMP)),
        ("TrainingArguments(fp16=False)", None, (StageName.FP32, StageName.AMP)),
        ("model = Net().half()", "fp16", (StageName.FP32, StageName.FP16)),
        ("model.to(torch.bfloat16)", "bf16", (StageName.FP32, StageName.FP16)),
        ("model.to('cuda')", None, (StageName.FP32, StageName.AMP)),
    ],
)
def test_the_stages_follow_the_scripts_own_precision(
    code: str, dtype: str | None, stages: tuple[StageName, ...], tmp_path: Path
) -> None:
    hints = read_hints(code)
    assert hints.dtype == dtype
    _, recipe = write_draft("train.py", tmp_path / "nanprobe.yaml", hints, ())
    assert recipe.stages == stages
    assert recipe.dtype == ("bfloat16" if dtype == "bf16" else None)


def test_the_comments_say_what_was_seen(tmp_path: Path) -> None:
    text, _ = write_draft("train.py", tmp_path / "nanprobe.yaml", read_hints(AMP), ())
    assert "# It takes data, --epochs (10), --config." in text
    assert "# It cannot run without data, --config: fill it in." in text
    assert "under autocast, in float16 (line 5)" in text
    assert "GradScaler (line 4)" in text and "#   init_scale: 2.0 ** 12" in text


def test_everything_commented_out_is_right_when_it_is_not(tmp_path: Path) -> None:
    text, _ = write_draft("train.py", tmp_path / "nanprobe.yaml", ScriptHints(), ())
    head, expect = text.split("expect: healthy\n")
    keys = ("dtype", "device", "timeout", "scaler", "limits", "fail_on", "  ")
    opened = [line[2:] if line.startswith(tuple(f"# {key}" for key in keys)) else line for line in head.splitlines()]
    from nanprobe.recipe import build_recipe

    recipe = build_recipe("\n".join([*opened, expect.split("\n", 1)[1].replace("# ", "")]), tmp_path / "nanprobe.yaml")
    assert recipe.limits.max_skipped_steps == 5 and recipe.scaler.growth_interval == 2000
    assert recipe.expect.codes == ("NP101",) and recipe.fail_on == "error"


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"))), st.text("ab -:#'\"é\n")
)
def test_any_argument_comes_through_as_it_is(args: list[str], name: str) -> None:
    hints = ScriptHints(options=(ScriptOption(f"--{name}", name, True),))
    target = f"{name.strip() or 'x'}.py".replace("\n", " ")
    _, recipe = write_draft(target, Path("nanprobe.yaml"), hints, tuple(args))
    assert recipe.args == tuple(args) and recipe.target == target


def test_a_script_outside_is_refused_as_the_recipe_would_be(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="leads outside of the recipe's folder"):
        write_draft("../train.py", tmp_path / "nanprobe.yaml", ScriptHints(), ())

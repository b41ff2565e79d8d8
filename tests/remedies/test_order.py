"""Calls put into the right order: what of the loop changes, and when nothing can be changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanprobe.records import StageName
from nanprobe.remedies.candidate import Candidate
from nanprobe.remedies.order import put_in_order
from remedies.cases import MARK, case, changed_lines, edited

LOOP = """import torch


def train(data):
    for x in data:
        opt.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x)
        scaler.scale(loss).backward()
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
"""
CALLS = {"scaler.scale": 9, "backward": 9, "clip_grad_norm_": 10, "scaler.step": 11, "scaler.update": 12}


def ordered(
    folder: Path, text: str, code: str, line: int, calls: dict[str, int], **details: object
) -> Candidate | None:
    lines = text.splitlines()
    lines[line - 1] += MARK
    marked = "\n".join(lines) + "\n"
    return next(put_in_order(case(folder, marked, code, StageName.AMP, calls=calls, **details)), None)


def after(candidate: Candidate | None) -> list[str]:
    assert candidate is not None
    return [line.replace(MARK, "").strip() for line in edited(candidate).splitlines()]


def test_unscale_goes_before_clipping(tmp_path: Path) -> None:
    lines = after(ordered(tmp_path, LOOP, "NP601", 10, CALLS))
    assert lines[9:11] == ["scaler.unscale_(opt)", "clip_grad_norm_(model.parameters(), 1.0)"]


def test_every_other_optimizer_is_unscaled(tmp_path: Path) -> None:
    text = LOOP.replace("        clip_grad", "        scaler.unscale_(opt)\n        clip_grad")
    text = text.replace("        scaler.step(opt)\n", "        scaler.step(opt)\n        scaler.step(other.opt)\n")
    calls = {"scaler.scale": 9, "scaler.unscale_": 10, "clip_grad_norm_": 11, "scaler.step": 13, "scaler.update": 14}
    lines = after(ordered(tmp_path, text, "NP615", 11, calls))
    assert lines[9:12] == [
        "scaler.unscale_(opt)",
        "scaler.unscale_(other.opt)",
        "clip_grad_norm_(model.parameters(), 1.0)",
    ]


@pytest.mark.parametrize("updates", [True, False])
def test_the_step_goes_through_the_scaler(tmp_path: Path, updates: bool) -> None:
    text = LOOP.replace("scaler.step(opt)", "opt.step()")
    text = text if updates else text.replace("        scaler.update()\n", "")
    calls = {"scaler.scale": 9, "backward": 9, "optimizer.step": 11}
    lines = after(ordered(tmp_path, text, "NP602", 11, calls))
    assert lines[10:] == ["scaler.step(opt)", "scaler.update()"]


def test_update_follows_the_step(tmp_path: Path) -> None:
    text = LOOP.replace("        scaler.update()\n", "    scaler.update()\n")
    candidate = ordered(tmp_path, text, "NP603", 11, {"scaler.step": 11})
    assert candidate is not None
    assert edited(candidate).splitlines()[10:] == ["        scaler.step(opt)" + MARK, "        scaler.update()"]


def test_update_moves_to_the_step(tmp_path: Path) -> None:
    text = LOOP.replace("        scaler.step(opt)\n", "        if last(x):\n            scaler.step(opt)\n")
    candidate = ordered(tmp_path, text, "NP604", 13, {"backward": 9})  # stopped by the first update
    assert candidate is not None
    assert edited(candidate).splitlines()[10:] == [
        "        if last(x):",
        "            scaler.step(opt)",
        "            scaler.update()",
    ]


def test_unscale_is_called_once_before_clipping(tmp_path: Path) -> None:
    text = LOOP.replace(".backward()\n", ".backward()\n        scaler.unscale_(opt)\n")
    text = text.replace("        clip", "        if last(x):\n            clip").replace(
        "        scaler.step(opt)", "            scaler.step(opt)"
    )
    calls = {"scaler.scale": 9, "scaler.unscale_": 10, "clip_grad_norm_": 12, "scaler.step": 13}
    candidate = ordered(tmp_path, text, "NP605", 10, calls)
    assert candidate is not None
    assert edited(candidate).splitlines()[9:12] == [
        "        if last(x):",
        "            scaler.unscale_(opt)",
        "            clip_grad_norm_(model.parameters(), 1.0)",
    ]


def test_update_comes_before_an_early_continue(tmp_path: Path) -> None:
    text = LOOP.replace(
        "        scaler.step",
        "        scaler.unscale_(opt)\n        if bad(x):\n            continue\n        scaler.step",
    )
    calls = {"scaler.unscale_": 11, "scaler.step": 14, "scaler.update": 15}
    lines = after(ordered(tmp_path, text, "NP617", 11, calls))
    assert lines[11:14] == ["if bad(x):", "scaler.update()", "continue"]


def test_gradients_are_cleared_before_backward(tmp_path: Path) -> None:
    text = LOOP.replace("        opt.zero_grad()\n", "")
    calls = {"backward": 8, "scaler.step": 10, "scaler.update": 11}
    lines = after(ordered(tmp_path, text, "NP616", 8, calls))
    assert lines[7:9] == ["opt.zero_grad()", "scaler.scale(loss).backward()"]


def test_autocast_ends_with_the_loss(tmp_path: Path) -> None:
    text = """import torch

with torch.autocast("cuda"):
    for x in data:
        opt.zero_grad()
        loss = model(x)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
print("done")
"""
    candidate = ordered(tmp_path, text, "NP606", 3, {"backward": 7, "scaler.step": 8})
    assert candidate is not None
    assert edited(candidate).splitlines()[2:] == [
        "for x in data:",
        "    opt.zero_grad()",
        '    with torch.autocast("cuda"):',
        "        loss = model(x)",
        "    scaler.scale(loss).backward()",
        "    scaler.step(opt)",
        "    scaler.update()",
        'print("done")',
    ]


@pytest.mark.parametrize(
    ("code", "line", "calls"),
    [
        ("NP601", 10, {"clip_grad_norm_": 10}),  # the scaler steps elsewhere
        ("NP617", 11, CALLS | {"scaler.unscale_": 9}),  # nothing leaves the loop early
        ("NP606", 8, CALLS),  # no with statement at that line
        ("NP614", 10, CALLS),  # no change for this code
    ],
)
def test_a_loop_that_cannot_be_read_is_left_alone(tmp_path: Path, code: str, line: int, calls: dict[str, int]) -> None:
    assert ordered(tmp_path, LOOP, code, line, calls) is None


def test_one_line_with_two_statements_is_left_alone(tmp_path: Path) -> None:
    text = LOOP.replace("        clip_grad_norm_(", "        x = 1; clip_grad_norm_(")
    assert ordered(tmp_path, text, "NP601", 10, CALLS) is None


def test_only_the_needed_lines_change(tmp_path: Path) -> None:
    candidate = ordered(tmp_path, LOOP, "NP601", 10, CALLS)
    assert candidate is not None
    before = (tmp_path / "train.py").read_text()
    assert changed_lines(before, edited(candidate)) == ["        scaler.unscale_(opt)"]

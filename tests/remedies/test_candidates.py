"""Candidates by finding: what is written for them, what is put in from outside, and in what order."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

import builders
from nanprobe.catalogue import CATALOGUE
from nanprobe.findings import BatchPlace, Finding
from nanprobe.interventions import ClipGradients, DropRows, EditedFile, Islands, MasterWeights, RaiseEps, ScaleRate
from nanprobe.records import CallRecord, Source, StageName
from nanprobe.remedies import data, precision, scaler, settings
from nanprobe.remedies.candidate import Case, RemedyKind
from nanprobe.remedies.island_lines import island
from nanprobe.remedies.table import candidates
from remedies.cases import MARK, case, changed_lines, edited

MODEL = f"""import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        h = x * x{MARK}
        return h.sum()


model = Net()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**16, growth_interval=1)
for x in data:
    loss = model(x)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""
CALLS = {"scaler.init": 13, "scaler.scale": 16, "backward": 16, "scaler.step": 17, "scaler.update": 18}


def amp_case(folder: Path, code: str = "NP101", text: str = MODEL, **details: object) -> Case:
    path = str(folder / "train.py")
    records = tuple(
        CallRecord(0, 0, name, Source(path, line, ""), {"init_scale": 2.0**16, "growth_interval": 1})
        for name, line in CALLS.items()
    )
    steps = tuple(
        builders.step_record(k, optimizer="AdamW", loss_scale=2.0**17, skipped=k % 2 == 0, grads=(2.0**15, 1.0))
        for k in range(10)
    )
    trace = builders.trace(StageName.AMP, calls=records, steps=steps, facts={"models": ["Net"]})
    return case(folder, text, code, StageName.AMP, trace=trace, **details)


def test_a_forward_is_decorated_and_the_helper_comes_with_it(tmp_path: Path) -> None:
    (candidate,) = precision.function_in_fp32(amp_case(tmp_path))
    text = edited(candidate)
    assert "    @in_fp32\n    def forward(self, x):\n" in text
    assert text.index("def in_fp32(") < text.index("class Net")
    assert "Net.forward" in candidate.text


def test_a_training_loop_is_not_run_in_fp32(tmp_path: Path) -> None:
    text = f"def train(x):\n    h = x * x{MARK}\n    h.sum().backward()\n    opt.step()\n"
    assert list(precision.function_in_fp32(amp_case(tmp_path, text=text))) == []
    assert list(precision.function_in_fp32(amp_case(tmp_path, text=f"h = x * x{MARK}\n"))) == []


def test_the_operand_of_the_operation_is_widened(tmp_path: Path) -> None:
    (candidate,) = precision.operand_in_fp32(amp_case(tmp_path, op="aten.mul.Tensor"))
    assert changed_lines(MODEL, edited(candidate)) == [f"        h = x.float() * x{MARK}"]


@pytest.mark.parametrize("op", ["aten.mm.default", "aten.linear", "aten.bmm.default"])
def test_the_operand_of_a_product_under_autocast_is_not(tmp_path: Path, op: str) -> None:
    text = MODEL.replace("x * x", "x @ x")
    assert list(precision.operand_in_fp32(amp_case(tmp_path, text=text, op=op))) == []


def test_bfloat16_changes_every_request_and_switches_the_scaler_off(tmp_path: Path) -> None:
    text = MODEL.replace("loss = model(x)", "with torch.autocast('cuda', dtype=torch.float16): loss = model(x.half())")
    (candidate,) = precision.bfloat16(amp_case(tmp_path, text=text))
    changed = edited(candidate)
    assert "dtype=torch.bfloat16" in changed and "x.bfloat16()" in changed and "enabled=False" in changed
    assert ("scaler_enabled", False) in candidate.treatment.facts


def test_a_precision_put_around_the_script_is_changed_from_outside(tmp_path: Path) -> None:
    found = amp_case(tmp_path)
    around = replace(found, run=builders.run(found.run.stages[0], replace(found.trace, as_written=False)))
    (candidate,) = precision.bfloat16(around)
    assert candidate.treatment.dtype == "bfloat16" and not candidate.treatment.edits


def test_scaler_settings_are_written_where_the_scaler_is_made_the_best_replay_first(tmp_path: Path) -> None:
    first, second = scaler.loss_scale(amp_case(tmp_path, "NP103", evidence={"unscaled_abs_max": 0.25}))
    assert 'GradScaler("cuda", init_scale=65536.0, growth_interval=2000)' in edited(first)
    assert "0 skips in the replay" in first.text
    assert "growth_interval=2000" in edited(second) and "init_scale=2.0**16" in edited(second)


def test_scaler_settings_by_place_and_unpacked(tmp_path: Path) -> None:
    text = MODEL.replace('GradScaler("cuda", init_scale=2.0**16, growth_interval=1)', 'GradScaler("cuda", 2.0**16)')
    (first, *_) = scaler.loss_scale(amp_case(tmp_path, "NP103", text, evidence={"unscaled_abs_max": 0.25}))
    assert 'GradScaler("cuda", 65536.0, growth_interval=2000)' in edited(first)
    text = MODEL.replace("init_scale=2.0**16, growth_interval=1", "**settings")
    (first, *_) = scaler.loss_scale(amp_case(tmp_path, "NP103", text, evidence={"unscaled_abs_max": 0.25}))
    assert not first.treatment.edits and first.treatment.init_scale == 65536.0


def test_a_scale_that_is_too_small_is_raised(tmp_path: Path) -> None:
    (first, *_) = scaler.loss_scale(amp_case(tmp_path, "NP201", evidence={"abs_max_where_lost": 2.0**-40}))
    assert "init_scale=16777216.0" in edited(first)


PLAIN = f"""import torch

model = torch.nn.Linear(4, 1)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x in data:
    loss = model(x).sum(){MARK}
    loss.backward()
    opt.step()
"""


def plain_case(folder: Path, code: str = "NP501", text: str = PLAIN, **details: object) -> Case:
    found = case(folder, text, code, calls={"backward": 7, "optimizer.step": 8}, **details)
    steps = tuple(builders.step_record(k, optimizer="AdamW") for k in range(10))
    return replace(found, run=builders.run(replace(found.trace, steps=steps)))


def test_a_learning_rate_is_divided_where_the_optimizer_is_made(tmp_path: Path) -> None:
    (candidate,) = settings.learning_rate(0.1, plain_case(tmp_path))
    assert "lr=(1e-3) * 0.1" in edited(candidate) and "÷ 10" in candidate.text


def test_a_learning_rate_is_divided_where_the_script_sets_it(tmp_path: Path) -> None:
    text = PLAIN.replace("    opt.step()\n", "    opt.step()\n    opt.param_groups[0]['lr'] = base / step\n")
    (candidate,) = settings.learning_rate(0.1, plain_case(tmp_path, text=text))
    assert "['lr'] = (base / step) * 0.1" in edited(candidate)
    assert "lr=1e-3" in edited(candidate)


def test_what_the_user_does_not_write_is_put_in_from_outside(tmp_path: Path) -> None:
    text = PLAIN.replace("torch.optim.AdamW(model.parameters(), lr=1e-3)", "make_optimizer(model)")
    found = plain_case(tmp_path, text=text)
    (rate,), (eps,) = settings.learning_rate(0.01, found), settings.optimizer_eps(found)
    assert rate.treatment.interventions == (ScaleRate(0.01),)
    assert eps.treatment.interventions == (RaiseEps(1e-4),)
    framework = replace(found, run=builders.run(replace(found.trace, calls=())))
    (clip,) = settings.clipping(framework)
    assert clip.treatment.interventions == (ClipGradients(1.0),)


def test_clipping_comes_before_the_step_and_after_unscaling(tmp_path: Path) -> None:
    (plain,) = settings.clipping(plain_case(tmp_path))
    assert "    torch.nn.utils.clip_grad_norm_([p for g in opt.param_groups" in edited(plain)
    (scaled,) = settings.clipping(amp_case(tmp_path))
    new = changed_lines(MODEL, edited(scaled))
    assert [line.strip()[:20] for line in new] == ["scaler.unscale_(opt)", "torch.nn.utils.clip_"]


def test_a_script_that_clips_as_much_already_is_left_alone(tmp_path: Path) -> None:
    found = plain_case(tmp_path)
    calls = (*found.trace.calls, builders.call("clip_grad_norm_", limit=0.5))
    assert list(settings.clipping(replace(found, run=builders.run(replace(found.trace, calls=calls))))) == []


def test_a_loop_without_a_scaler_gets_one(tmp_path: Path) -> None:
    text = PLAIN.replace("    opt.step()\n", "    clip_grad_norm_(model.parameters(), 1.0)\n    opt.step()\n")
    found = case(
        tmp_path, text, "NP201", StageName.AMP, evidence={"abs_max_where_lost": 2.0**-20},
        calls={"backward": 7, "clip_grad_norm_": 8, "optimizer.step": 9},
    )  # fmt: skip
    (candidate,) = scaler.add_scaler(found)
    lines = edited(candidate).splitlines()
    assert lines[2].startswith("scaler = torch.amp.GradScaler(") and "init_scale=1024.0" in lines[2]
    assert [line.strip() for line in lines[-5:]] == [
        "scaler.scale(loss).backward()",
        "scaler.unscale_(opt)",
        "clip_grad_norm_(model.parameters(), 1.0)",
        "scaler.step(opt)",
        "scaler.update()",
    ]


def half_case(folder: Path, text: str, **facts: object) -> Case:
    found = plain_case(folder, "NP202", text)
    trace = replace(found.trace, name=StageName.FP16, dtype="bfloat16", facts={"low_weights": "bfloat16", **facts})
    return replace(
        found, finding=replace(found.finding, stage=StageName.FP16), run=builders.run(builders.trace(), trace)
    )


def test_master_weights_are_made_below_the_optimizer(tmp_path: Path) -> None:
    (candidate,) = precision.master_weights(half_case(tmp_path, PLAIN))
    assert "lr=1e-3)\nfp32_masters(opt)\n" in edited(candidate)
    hidden = PLAIN.replace("torch.optim.AdamW(model.parameters(), lr=1e-3)", "make(model)")
    (candidate,) = precision.master_weights(half_case(tmp_path, hidden))
    assert candidate.treatment.interventions == (MasterWeights(),)


def test_under_autocast_the_weights_stay_in_fp32_instead(tmp_path: Path) -> None:
    text = PLAIN.replace("opt = ", "model.half()\nopt = ")
    (candidate,) = precision.master_weights(half_case(tmp_path, text, autocast_dtype="float16"))
    assert "half()" not in edited(candidate)


LOADER = f"""from torch.utils.data import DataLoader

for x in DataLoader(Samples(), batch_size=4):
    loss = model(x){MARK}
"""


def test_rows_are_dropped_from_outside_then_named_in_the_text(tmp_path: Path) -> None:
    found = case(tmp_path, LOADER, "NP301", batch=BatchPlace(1, (2,), (6,)))
    trace = replace(found.trace, batches=(builders.batch(0, 0),))
    (candidate,) = data.dropped_rows(replace(found, run=builders.run(trace)))
    assert candidate.treatment.interventions == (DropRows((6,)),) and candidate.written is not None
    written = candidate.written(replace(trace, facts={"dropped_samples": [6, 11]}))
    assert written is not None and not written.same_data
    assert "sound = [i for i in range(len(dataset)) if i not in {6, 11}]" in edited(written)
    assert "DataLoader(torch.utils.data.Subset(dataset, sound), batch_size=4)" in edited(written)
    assert candidate.written(replace(trace, facts={"dropped_samples": []})) is None


def test_an_absurd_value_is_dropped_by_its_size(tmp_path: Path) -> None:
    found = case(tmp_path, LOADER, "NP305", evidence={"input_abs_max": 3e29}, batch=BatchPlace(1, (), tuple(range(8))))
    trace = replace(found.trace, batches=(builders.batch(0, 0),))
    (candidate,) = data.dropped_rows(replace(found, run=builders.run(trace)))
    (drop,) = candidate.treatment.interventions
    assert isinstance(drop, DropRows) and drop.dataset_indices == () and drop.largest == pytest.approx(3e27)


def test_without_a_data_loader_no_row_can_be_dropped(tmp_path: Path) -> None:
    assert list(data.dropped_rows(case(tmp_path, LOADER, "NP301"))) == []


def test_an_island_is_a_decorator_or_a_loop_over_modules(tmp_path: Path) -> None:
    found = amp_case(tmp_path)
    candidate = island(found, ["part.0", "part.1"])
    assert candidate.treatment.interventions == (Islands(("part.0", "part.1")),) and candidate.written is not None
    path, line = str(tmp_path / "train.py"), 6
    seen = {"islands": {"part.0": ["Net", path, line], "part.1": ["Net", path, line]}}
    written = candidate.written(replace(found.trace, facts=seen))
    assert written is not None and edited(written).count("    @in_fp32\n    def forward") == 1
    seen = {"islands": {"part.0": ["Linear", "/lib/site-packages/torch/nn.py", 3]}}
    written = candidate.written(replace(found.trace, facts=seen))
    assert written is not None
    assert 'for part in map(model.get_submodule, ("part.0", "part.1")):' in edited(written)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_every_code_has_candidates_that_can_be_made(tmp_path: Path, code: str) -> None:
    found = amp_case(tmp_path, code, evidence={"unscaled_abs_max": 0.25, "constant": math.nan})
    for candidate in candidates(found):
        assert isinstance(candidate.kind, RemedyKind) and candidate.text
        for edit in candidate.treatment.edits:
            compile(edit.text, edit.path, "exec")
    assert len({c.treatment for c in candidates(found)}) == len(candidates(found))


def test_forward_overflow_is_tried_in_the_order_of_promise(tmp_path: Path) -> None:
    kinds = [c.kind for c in candidates(amp_case(tmp_path, op="aten.mul.Tensor"))]
    assert kinds[:3] == [RemedyKind.FUNCTION, RemedyKind.OPERAND, RemedyKind.BF16]
    assert RemedyKind.SCALE in kinds[3:]


def test_a_remedy_is_put_on_top_of_another(tmp_path: Path) -> None:
    found = plain_case(tmp_path)
    (clip,) = settings.clipping(found)
    again = replace(found, sources=found.sources.with_edits(clip.treatment.edits), base=clip.treatment)
    (rate,) = settings.learning_rate(0.1, again)
    (edit,) = rate.treatment.edits
    assert isinstance(edit, EditedFile) and "clip_grad_norm_" in edit.text and "* 0.1" in edit.text


def test_library_code_is_never_edited(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    found = amp_case(folder)
    assert isinstance(found.finding, Finding)
    assert found.script() is None and list(precision.function_in_fp32(found)) == []

"""A saved run as DataFrames: what is in them, of which type, and that nothing heavy is loaded before it is needed."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest

import nanprobe
import samples
from command import run_python
from nanprobe.errors import RunUnreadable
from nanprobe.frames import SavedRun
from nanprobe.storage import write_run

TABLES = ("stages", "steps", "gradients", "layers", "findings")


def saved(name: str, directory: Path) -> SavedRun:
    return SavedRun(*samples.ALL[name](directory))


@pytest.mark.parametrize("name", samples.ALL)
def test_every_run_has_every_table_with_the_same_columns_and_types(name: str, tmp_path: Path) -> None:
    usual, found = saved("overflow", tmp_path), saved(name, tmp_path)
    for table in TABLES:
        assert (
            getattr(found, table)
            .dtypes.drop("parameter", errors="ignore")
            .equals(getattr(usual, table).dtypes.drop("parameter", errors="ignore"))
        )
        assert getattr(found, table) is getattr(found, table)


def test_the_docstrings_name_every_column(tmp_path: Path) -> None:
    run = saved("overflow", tmp_path)
    for table in TABLES:
        told = getattr(SavedRun, table).__doc__
        for column in getattr(run, table).columns:
            stem = column.rsplit("_", 1)[0] if column.endswith(("_fp32", "_fp16", "_amp")) else column
            assert f"`{stem}" in told, (table, column)


def test_stages(tmp_path: Path) -> None:
    frame = saved("overflow", tmp_path).stages.set_index("stage")
    assert frame.loc["amp", "first_nonfinite_step"] == 12
    assert frame.loc["fp32", "first_nonfinite_step"] is pd.NA
    assert frame["skipped_steps"].to_dict() == {"fp32": 0, "fp16": 0, "amp": 13}
    assert frame["as_written"].to_list() == [False, False, True]
    assert frame.loc["fp16", "final_loss"] == pytest.approx(2.31 * 0.97**49)


def test_steps(tmp_path: Path) -> None:
    frame = saved("overflow", tmp_path).steps
    assert len(frame) == 150
    amp = frame[frame["stage"] == "amp"].set_index("step")
    assert amp.loc[0, "grad_abs_max"] == 127.0 / 4096.0
    assert math.isnan(amp.loc[12, "grad_abs_max"]) and math.isnan(amp.loc[12, "loss"])
    assert amp["skipped"].sum() == (~amp["finite"]).sum() == 13
    assert amp["learning_rate"].unique().tolist() == [1e-3]
    assert frame[frame["stage"] == "fp32"]["loss_scale"].isna().all()
    assert (frame["stage"] >= "fp16").sum() == 100  # the stages are ordered


def test_gradients(tmp_path: Path) -> None:
    frame = saved("overflow", tmp_path).gradients
    assert len(frame) == 300
    one = frame[(frame["stage"] == "amp") & (frame["step"] == 1)].set_index("parameter")
    bias = one.loc["encoder.layers.3.ffn.down.bias"]
    assert (bias["grad_abs_max"], bias["scaled_grad_abs_max"]) == (2.9 / 4096.0, 2.9)


def test_layers(tmp_path: Path) -> None:
    frame = saved("overflow", tmp_path).layers.set_index("name")
    worst = frame.loc["encoder.layers.3.ffn.down.weight"]
    assert (worst["kind"], worst["headroom_bits"], worst["nonfinite_steps_amp"]) == ("overflow", -0.3, 12)
    assert math.isinf(worst["grad_abs_max_fp16"])
    assert math.isnan(worst["flushed_fraction_fp32"])
    assert frame["kind"].isna().sum() == len(frame) - 2


def test_findings(tmp_path: Path) -> None:
    frame = saved("overflow", tmp_path).findings
    assert frame["code"].to_list() == ["NP101", "NP205", "NP107"]
    assert frame["is_verdict"].to_list() == [True, False, False]
    assert (frame["step"][0], frame["line"][0]) == (12, 14)
    assert frame["step"][1] is pd.NA
    assert frame["evidence"][1] == {"flushed_fraction": 0.18, "lost_norm_fraction": 0.02}
    assert len(frame["remedies"][0]) == 3


def test_the_tables_are_as_notebooks_want_them(tmp_path: Path) -> None:
    """What the README shows: select, pivot and group, without a conversion."""
    run = saved("overflow", tmp_path)
    curves = run.steps.pivot(index="step", columns="stage", values="loss")
    assert list(curves.columns) == ["fp32", "fp16", "amp"]
    assert run.layers.nsmallest(1, "headroom_bits")["name"].item() == "encoder.layers.3.ffn.down.weight"
    assert run.gradients.groupby(["stage", "parameter"], observed=True)["grad_abs_max"].max().shape == (6,)


def test_a_run_is_loaded_from_its_directory(tmp_path: Path) -> None:
    record, _ = samples.overflow(tmp_path / "run")
    write_run(record)
    found = nanprobe.load_run(tmp_path / "run")
    assert len(found.steps) == 150
    assert repr(found).startswith("<nanprobe run of train.py: failing, NP101: ")
    with pytest.raises(RunUnreadable, match="no such directory"):
        nanprobe.load_run(tmp_path / "nowhere")


def test_importing_loads_neither_pandas_nor_torch(tmp_path: Path) -> None:
    record, _ = samples.overflow(tmp_path / "run")
    write_run(record)
    code = (
        "import sys, nanprobe\n"
        "assert not {'torch', 'pandas', 'numpy'} & sys.modules.keys()\n"
        "run = nanprobe.load_run('run')\n"
        "assert not {'torch', 'pandas'} & sys.modules.keys()\n"
        "print(len(run.layers), 'torch' in sys.modules)\n"
    )
    assert run_python(code, tmp_path).split()[1] == "False"

"""The JSON document: exactly the keys of the contract, always strict JSON."""

import json
import os
from enum import Enum
from pathlib import Path

import pytest

import samples
from nanprobe.reports.document import build_document, to_plain
from nanprobe.reports.formats import ReportFormat, make_report

FINDING_KEYS = [
    *("code", "kind", "severity", "title", "stage", "step", "phase", "op", "module", "parameter", "source", "batch"),
    *("evidence", "why", "remedies", "chain"),
]
REMEDY_KEYS = [
    *("text", "verified", "steps", "cost", "kind", "reason", "final_loss", "reference_loss", "gradient_error", "diff"),
    "losses",
]
LINK_KEYS = ["op", "tensor", "module", "source", "phase", "before", "after", "skipped"]


def refuse_constant(name):
    raise AssertionError(f"{name} is not JSON")


@pytest.mark.parametrize("name", samples.ALL)
def test_the_document_has_exactly_the_keys_of_the_contract(name, tmp_path):
    document = build_document(*samples.ALL[name](tmp_path))
    assert list(document) == [
        *("schema_version", "nanprobe", "torch", "device", "target", "status", "verdict", "findings", "stages"),
        *("layers", "verification"),
    ]
    assert document["schema_version"] == 1
    for finding in document["findings"]:
        assert list(finding) == FINDING_KEYS
        assert finding["source"] is None or list(finding["source"]) == ["file", "line", "code"]
        assert finding["batch"] is None or list(finding["batch"]) == ["index", "rows", "dataset_indices", "columns"]
        assert all(list(remedy) == REMEDY_KEYS for remedy in finding["remedies"])
        assert all(list(link) == LINK_KEYS for link in finding["chain"])
    assert document["verdict"] == (document["findings"][0] if document["findings"] else None)


def test_a_stage_in_the_document(tmp_path):
    amp = build_document(*samples.overflow(tmp_path))["stages"][2]
    losses, scales = amp.pop("loss"), amp.pop("loss_scale")
    assert losses[0] == 2.31
    assert losses[12] == "NaN"
    assert scales == [4096.0] * 50
    assert amp == {
        "name": "amp",
        "dtype": "float16",
        "as_written": True,
        "outcome": "completed",
        "reason": None,
        "steps": 50,
        "skipped_steps": 13,
        "first_nonfinite_step": 12,
        "seconds": 1.9,
    }


def test_a_layer_in_the_document(tmp_path):
    assert build_document(*samples.overflow(tmp_path))["layers"][0] == {
        "name": "encoder.layers.3.ffn.down.weight",
        "module": "encoder.layers.3.ffn.down",
        "kind": "overflow",
        "grad_abs_max": {"fp32": 0.052, "fp16": "Infinity", "amp": "NaN"},
        "flushed_fraction": {"fp16": 0.004, "amp": 0.0},
        "lost_norm_fraction": {"fp16": 1e-5, "amp": 0.0},
        "headroom_bits": -0.3,
        "nonfinite_steps": {"fp32": 0, "fp16": 31, "amp": 12},
    }


@pytest.mark.parametrize("name", samples.ALL)
def test_the_json_report_is_strict_json_and_the_document(name, tmp_path):
    sample = samples.ALL[name](tmp_path)
    text = make_report(ReportFormat.JSON).render(*sample)
    assert json.loads(text, parse_constant=refuse_constant) == build_document(*sample)


def test_source_files_are_relative_inside_the_working_directory_only(tmp_path, monkeypatch):
    sample = samples.overflow(tmp_path, str(tmp_path / "src"))
    assert build_document(*sample)["verdict"]["source"]["file"] == str(tmp_path / "src" / "train.py")
    monkeypatch.chdir(tmp_path)
    assert build_document(*sample)["verdict"]["source"]["file"] == os.path.join("src", "train.py")


def test_plain_values():
    class Colour(Enum):
        RED = "red"

    value = {"a": (1, True, None), 2: Colour.RED, "nan": float("nan"), "inf": [-float("inf")], "path": Path("x")}
    plain = {"a": [1, True, None], "2": "red", "nan": "NaN", "inf": ["-Infinity"], "path": "x"}
    assert to_plain(value) == plain


@pytest.mark.parametrize("form", ReportFormat)
@pytest.mark.parametrize("name", samples.ALL)
def test_every_format_has_a_report_that_renders_every_ending(form, name, tmp_path):
    text = make_report(form, width=80).render(*samples.ALL[name](tmp_path))
    assert text.endswith("\n")
    assert "train.py" in text

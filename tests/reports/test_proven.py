"""What was tried, as the reports show it."""

import pytest

import samples
from nanprobe.findings import Remedy, RemedyCost, Verification
from nanprobe.records import StageName
from nanprobe.reports.document import build_document
from nanprobe.reports.terminal import render_terminal
from nanprobe.storage import read_verification, write_verification

RUN = "/cache/nanprobe/runs/20260102-030405-train-1f3a"
DIFF = """--- a/train.py
+++ b/train.py
@@ -36,6 +36,7 @@
 class Mlp(nn.Module):

+    @in_fp32
     def forward(self, x):
         h = F.relu(self.up(x))
         h = h * h
"""
HELPS = Remedy(
    "run Mlp.forward in FP32 (line 37)",
    verified=True,
    steps=50,
    kind="FP32 function",
    cost=RemedyCost(1.13, 1.01),
    final_loss=0.4213,
    reference_loss=0.4207,
    gradient_error=0.0004,
    diff=DIFF,
    losses=(0.9, 0.42),
)
REFUSED = Remedy(
    "line 81: GradScaler(init_scale=4096.0)",
    verified=False,
    steps=50,
    kind="loss scale",
    reason="then NP101: layers.5.mlp (line 39) reaches 1.7e+05 in the forward pass; float16 ends at 65504",
    cost=RemedyCost(0.98, None),
    final_loss=float("nan"),
    reference_loss=0.4207,
)


def verified(project, *tried, stopped=None):
    run, diagnosis = samples.overflow(RUN, project)
    assert diagnosis.verdict is not None
    code = diagnosis.verdict.code
    verification = Verification(code, StageName.AMP, tried, len(tried), 12.3, 120.0, stopped)
    return run, diagnosis.with_verification(verification)


@pytest.mark.parametrize("width", [80, 120])
def test_proven(width, project, check_golden):
    check_golden(render_terminal(*verified(project, REFUSED, HELPS), width, False, False))


def test_nothing_helped(project, check_golden):
    stopped = "the budget of 120 s is used up"
    check_golden(render_terminal(*verified(project, REFUSED, stopped=stopped), 80, False, False))


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_the_table_fits(width, project):
    text = render_terminal(*verified(project, REFUSED, HELPS), width, False, False)
    shown = text[text.index("PROVEN REMEDIES") : text.index("What to write")]
    assert all(len(line) <= width for line in shown.splitlines())
    assert "loss scale" in shown and "FP32 function" in shown


def test_the_document_has_what_was_tried(project):
    document = build_document(*verified(project, REFUSED, HELPS))
    first, *_, last = document["verdict"]["remedies"]
    assert (first["verified"], first["steps"], first["diff"]) == (True, 50, DIFF)
    assert first["cost"] == {"time_ratio": 1.13, "memory_ratio": 1.01}
    assert (last["verified"], last["final_loss"], last["cost"]["memory_ratio"]) == (False, "NaN", None)
    assert document["findings"][0] == document["verdict"]
    assert document["verification"]["verified"] == 1 and document["verification"]["tried"] == 2


def test_what_was_not_tried_is_null(project):
    document = build_document(*samples.overflow(RUN, project))
    assert document["verification"] is None
    untried = [r for r in document["verdict"]["remedies"] if r["verified"] is None]
    assert untried
    for remedy in untried:
        assert all(value is None for key, value in remedy.items() if key != "text")


def test_a_verification_of_another_verdict_is_not_shown(project):
    _, diagnosis = samples.overflow(RUN, project)
    other = Verification("NP999", StageName.AMP, (HELPS,), 1, 1.0, 120.0)
    assert diagnosis.with_verification(other) == diagnosis


def test_what_was_tried_survives_the_run_directory(project, tmp_path):
    _, diagnosis = verified(project, REFUSED, HELPS)
    assert diagnosis.verification is not None
    write_verification(tmp_path, diagnosis.verification)
    again = read_verification(tmp_path)
    assert again is not None
    assert repr(again) == repr(diagnosis.verification)  # NaN is not equal to itself
    assert read_verification(tmp_path / "elsewhere") is None

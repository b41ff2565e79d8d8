"""A saved run as pandas DataFrames, for notebooks. No torch here; pandas is loaded with the first table."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

from nanprobe.findings import Diagnosis
from nanprobe.frames.tables import (
    FINDING_COLUMNS,
    GRADIENT_COLUMNS,
    LAYER_COLUMNS,
    STAGE_COLUMNS,
    STEP_COLUMNS,
    finding_row,
    gradient_rows,
    layer_row,
    make_frame,
    stage_row,
    step_row,
)
from nanprobe.records import RunRecord
from nanprobe.reports.stage_summary import summarize_stages
from nanprobe.saved_run import read_answer
from nanprobe.storage import find_run

if TYPE_CHECKING:
    import pandas as pd


def load_run(directory: str | os.PathLike[str]) -> SavedRun:
    """The run of `nanprobe diagnose` in a directory, or "last" for the newest one.

    Raises nanprobe.errors.RunUnreadable when it is no such run, is damaged, or was written by a newer nanprobe.
    """
    return SavedRun(*read_answer(find_run(os.fspath(directory))))


class SavedRun:
    """One run. Each table is made when it is first asked for, and is the same object from then on.

    `run` and `diagnosis` hold the records behind the tables. Fractions are of 1. What was not measured is missing (NaN,
    None or <NA>); in columns of numbers that can themselves be NaN, the description says which NaN it is.
    """

    def __init__(self, run: RunRecord, diagnosis: Diagnosis) -> None:
        self.run, self.diagnosis = run, diagnosis

    def __repr__(self) -> str:
        verdict = self.diagnosis.verdict
        found = "" if verdict is None else f", {verdict.code}: {verdict.title}"
        return f"<nanprobe run of {self.run.target.path}: {self.diagnosis.status.value}{found}>"

    @cached_property
    def stages(self) -> pd.DataFrame:
        """One row a stage, in the order they run.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `outcome`: completed, crashed, skipped or timeout (category)
        - `dtype`: the format it computed in
        - `as_written`: whether the script itself trains in this precision; else nanprobe put it around
        - `steps`: optimizer updates, those the scaler skipped too
        - `skipped_steps`: updates the scaler skipped
        - `first_nonfinite_step`: first step with a NaN or Inf in loss, gradients, weights or buffers (Int64)
        - `final_loss`: of the last step that has a loss; may be NaN or infinite
        - `seconds`: how long it took
        - `reason`: why it was skipped or did not end by itself
        """
        return make_frame(map(stage_row, summarize_stages(self.run.stages, self.diagnosis)), STAGE_COLUMNS)

    @cached_property
    def steps(self) -> pd.DataFrame:
        """One row for each step of each stage.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `step`: index of the update, from 0
        - `optimizer`: class of the optimizer that stepped
        - `backward_passes`: backward passes that led to it
        - `loss`: value that backward started from, loss scale taken out; NaN also where there was none
        - `loss_scale`: factor in the gradients; NaN when not scaled
        - `skipped`: whether the scaler left the weights alone
        - `finite`: whether loss, gradients, weights and buffers are
        - `grad_abs_max`: largest gradient of all parameters, loss scale taken out; Inf or NaN when one is
        - `learning_rate`: of the first parameter group
        """
        rows = (step_row(trace, step) for trace in self.run.stages for step in trace.steps)
        return make_frame(rows, STEP_COLUMNS)

    @cached_property
    def gradients(self) -> pd.DataFrame:
        """One row for each parameter in each step of each stage; none where the parameter had no gradient.

        - `stage`: fp32, fp16 or amp (ordered category)
        - `step`: index of the update, from 0
        - `parameter`: its name (category)
        - `grad_abs_max`: largest magnitude in its gradient, loss scale taken out; Inf or NaN as found
        - `scaled_grad_abs_max`: the same with the loss scale in it, which is what has to fit in the format
        """
        frame = make_frame((row for trace in self.run.stages for row in gradient_rows(trace)), GRADIENT_COLUMNS)
        return frame.astype({"parameter": "category"})

    @cached_property
    def layers(self) -> pd.DataFrame:
        """One row for each parameter of any stage; columns that end in a stage's name are missing where it did not run.

        - `name`, `module`: of the parameter
        - `kind`: of the gravest finding that names it (category)
        - `headroom_bits`: how many times the largest scaled gradient could double before it overflows, in the amp
          stage, else in the fp16 stage
        - `grad_abs_max_fp32`, `_fp16`, `_amp`: largest finite gradient of all steps, loss scale taken out
        - `flushed_fraction_…`: largest share of elements, non-zero in the FP32 re-check, that became 0
        - `lost_norm_fraction_…`: largest share of the gradient's L2 norm that went with them
        - `nonfinite_steps_…`: steps in which the gradient was not finite (Int64)
        """
        return make_frame(map(layer_row, self.diagnosis.layers), LAYER_COLUMNS)

    @cached_property
    def findings(self) -> pd.DataFrame:
        """One row a finding, the gravest first.

        - `code`: "NP101"; `nanprobe explain` tells what it means
        - `kind`, `severity`: as in the report (categories)
        - `is_verdict`: whether it is the root cause
        - `title`, `why`: in words
        - `stage` (ordered category), `step` (Int64; -1 is before the first), `phase` (category): when
        - `op`, `module`, `parameter`, `file`, `line` (Int64), `code_line`: where
        - `evidence`: its numbers, a dictionary
        - `remedies`: what to do, a list of texts
        """
        verdict = self.diagnosis.verdict
        return make_frame((finding_row(f, f is verdict) for f in self.diagnosis.findings), FINDING_COLUMNS)

"""What a sweep costs: a swept step beside an amp step, and 25 scales beside 25 runs.

Run as `python -m benchmarks.sweep`. The 25 runs are not run: a run is its steps, so they cost 25 times the measured amp
step each step. Start-up, the fp32 stage before the sweep and the two runs that confirm its edges are not counted here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from benchmarks.contenders import MANY, OWN_AMP, amp, session
from benchmarks.models import MODELS
from benchmarks.timing import Contender, compare
from nanprobe.plan import RunPlan, StageRequest
from nanprobe.probe.session import StageSession
from nanprobe.records import StageName, Target

SCALES = 25
TARGET = 1.5  # amp steps that a swept step may take


def contenders(model: str, device: str = "cpu") -> tuple[Contender, Contender]:
    """The swept step, and the amp step it is measured against."""
    build = amp(MODELS[model], device)
    watched = Contender("amp, watched", build, lambda trainer: session(StageName.AMP, device, False, OWN_AMP))
    swept = Contender("sweep", build, lambda trainer: sweep_session(device), TARGET, watched.name)
    return swept, watched


@contextmanager
def sweep_session(device: str) -> Iterator[None]:
    """A stage watched as the recorded run of `nanprobe sweep-scale` is."""
    with tempfile.TemporaryDirectory() as directory:
        plan = RunPlan(Target("benchmark.py"), steps=MANY, device=device)
        request = StageRequest(StageName.AMP, plan, directory, OWN_AMP, deep_ends=False)
        with StageSession(replace(request, sweep=True), lambda record: None):
            yield


def measure(model: str, budget: float, steps: int = 3) -> dict[str, object]:
    """The ratio for one model, and what 25 scales cost with it, in amp runs."""
    swept, watched = contenders(model)
    ratio = compare(swept, watched, budget, steps)
    return {**ratio.as_json(), "runs_for_25_scales": ratio.median, "share_of_25_runs": ratio.median / SCALES}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--models", nargs="*", default=["transformer"], choices=list(MODELS))
    parser.add_argument("--budget", type=float, default=12.0, help="seconds a model (at least five turns are taken)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for model in options.models:
        found = measure(model, options.budget)
        print(f"{model}: a swept step takes {found['median']:.2f} amp steps (target {TARGET})", json.dumps(found))


if __name__ == "__main__":
    main()

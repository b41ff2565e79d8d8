"""The columns of the benchmark: plain steps, nanprobe's pieces and sessions, and what people use today."""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout

import torch

from benchmarks.models import Trainer
from benchmarks.timing import Contender
from nanprobe.plan import RunPlan, StageRequest
from nanprobe.precision import RoundingMode, cuda_autocast_on_cpu
from nanprobe.records import StageName, Target

Build = Callable[[], Trainer]
Enter = Callable[[Trainer], AbstractContextManager[object]]
Facts = dict[str, object]
NO_AMP: Facts = {}
OWN_AMP: Facts = {"autocast_dtype": "float16", "scaler_enabled": True}  # as the fp32 stage reports such a script
MANY = 1_000_000  # steps a session may take; a turn leaves it long before


def contenders(build: Build, device: str = "cpu", native: bool = False) -> list[Contender]:
    """Every column for one model; `native` adds PyTorch's own CPU autocast, which takes about a minute a turn."""
    amp_target = 1.3 if device == "cpu" else None
    with_amp = amp(build, device)

    def watch(stage: StageName, deep: bool = False, facts: Facts = NO_AMP) -> Enter:
        return lambda trainer: session(stage, device, deep, facts)

    columns = [
        Contender("plain", build, lambda t: nullcontext()),
        Contender("watched", build, watch(StageName.FP32), 1.03),
        Contender("amp", with_amp, lambda t: autocast_emulation(device), amp_target),
        Contender("amp, watched", with_amp, watch(StageName.AMP, facts=OWN_AMP), amp_target),
        Contender("amp put in, watched", build, watch(StageName.AMP), amp_target),
        Contender("raw fp16", build, lambda t: RoundingMode(), 1.5),
        Contender("raw fp16, watched", build, watch(StageName.FP16), 1.5),
        Contender("deep fp32", build, watch(StageName.FP32, deep=True), 4.0, "watched"),
        Contender("deep amp", with_amp, watch(StageName.AMP, True, OWN_AMP), 4.0, "amp, watched"),
        Contender("deep fp16", build, watch(StageName.FP16, deep=True), 4.0, "raw fp16, watched"),
        Contender("detect_anomaly", build, lambda t: detect_anomaly()),
        Contender("DebugUnderflowOverflow", with_transformers_debug(build), lambda t: redirect_stdout(io.StringIO())),
    ]
    if native and device == "cpu":
        columns.append(Contender("CPU's own autocast", with_amp, lambda t: nullcontext()))
    return columns


def amp(build: Build, device: str) -> Build:
    """The same trainer with autocast and a GradScaler, as a script has them."""

    def build_with_amp() -> Trainer:
        trainer = build()
        trainer.around = lambda: torch.autocast(device, torch.float16)
        trainer.scaler = torch.amp.GradScaler(device)
        return trainer

    return build_with_amp


def autocast_emulation(device: str) -> AbstractContextManager[object]:
    """CUDA's autocast: emulated on a CPU, native on a GPU."""
    return cuda_autocast_on_cpu() if device == "cpu" else nullcontext()


@contextmanager
def session(stage: StageName, device: str, deep: bool, facts: Facts) -> Iterator[None]:
    """A stage watched as `nanprobe diagnose` watches it; with `deep`, every step is re-checked op by op."""
    from nanprobe.probe.session import StageSession

    with tempfile.TemporaryDirectory() as directory:
        plan = RunPlan(Target("benchmark.py"), steps=MANY, device=device)
        deep_steps = tuple(range(1000)) if deep else ()
        request = StageRequest(stage, plan, directory, facts, deep_steps, deep_ends=False)
        with StageSession(request, lambda record: None):
            yield


@contextmanager
def detect_anomaly() -> Iterator[None]:
    """PyTorch's own: NaN checks and stack traces in backward."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that it is slow
        with torch.autograd.detect_anomaly(check_nan=True):
            yield


def with_transformers_debug(build: Build) -> Build:
    """The same trainer with transformers' forward hooks on every module; they cannot be taken off again."""

    def build_with_debug() -> Trainer:
        from transformers.debug_utils import DebugUnderflowOverflow

        trainer = build()
        DebugUnderflowOverflow(trainer.model)
        return trainer

    return build_with_debug

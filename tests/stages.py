"""A loop in this process as the trace of a stage, ready for diagnosis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nanprobe.records import (
    BatchRecord,
    CallRecord,
    ErrorRecord,
    Outcome,
    ParameterInfo,
    StageName,
    StageTrace,
)
from nanprobe.target.frames import describe_error
from probe.sessions import Watched, watch


def run_stage(loop: Callable[[], Any], stage: StageName = StageName.FP32, **request: Any) -> StageTrace:
    """The trace of `loop` run as a stage; an exception of its own ends the stage, and is on the trace."""
    raised: list[ErrorRecord] = []

    def whole() -> None:
        try:
            loop()
        except Exception as error:
            raised.append(describe_error(error, 0))

    trace = trace_of(watch(whole, stage, **request), stage)
    return replace(trace, error=raised[0], outcome=Outcome.CRASHED) if raised else trace


def trace_of(watched: Watched, stage: StageName = StageName.FP32) -> StageTrace:
    """What a session wrote, as a trace."""
    known: dict[str, ParameterInfo] = {}
    for record in watched.of(tuple):
        known.update((p.name, p) for p in record if isinstance(p, ParameterInfo))
    return StageTrace(
        stage,
        Outcome.COMPLETED,
        str(watched.facts["dtype"]),
        bool(watched.facts["as_written"]),
        parameters=tuple(known.values()),
        steps=tuple(watched.steps),
        deep_steps=tuple(watched.deep),
        calls=tuple(watched.of(CallRecord)),
        batches=tuple(watched.of(BatchRecord)),
        facts=watched.facts,
    )

"""Driving a stage session around a training loop in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nanprobe.plan import RunPlan, StageRequest
from nanprobe.probe.session import StageDone, StageSession
from nanprobe.records import DeepStep, OpRecord, StageName, StepRecord, Target

R = TypeVar("R")

AMP_FACTS: dict[str, object] = {"autocast_dtype": "float16", "scaler_enabled": True}


@dataclass
class Watched:
    """What a session wrote, and what the loop returned."""

    written: list[object] = field(default_factory=list)
    result: Any = None
    done: bool = False  # the session ended the loop
    facts: dict[str, Any] = field(default_factory=dict)

    def of(self, kind: type[R]) -> list[R]:
        return [r for r in self.written if isinstance(r, kind)]

    @property
    def steps(self) -> list[StepRecord]:
        return self.of(StepRecord)

    @property
    def deep(self) -> list[DeepStep]:
        return self.of(DeepStep)

    def ops(self, packet: str) -> list[OpRecord]:
        """Operations of the deep steps by the middle of their name."""
        return [op for d in self.deep for op in d.ops if op.op.split(".")[1] == packet]


def watch(
    loop: Callable[[], Any],
    stage: StageName = StageName.FP32,
    *,
    steps: int = 100,
    deep: tuple[int, ...] = (),
    facts: dict[str, object] | None = None,
    rerun: bool = False,
    **plan: Any,
) -> Watched:
    """Runs `loop` as a stage; an exception of its own comes out."""
    request = StageRequest(
        stage, RunPlan(Target("x"), steps=steps, **plan), "/tmp", facts or {}, deep, deep_ends=False, rerun=rerun
    )
    watched = Watched()
    with StageSession(request, watched.written.append) as session:
        try:
            watched.result = loop()
        except StageDone:
            watched.done = True
        session.finish(None)
        watched.facts = session.facts()
    for d in watched.deep:
        assert [op.index for op in d.ops] == list(range(len(d.ops)))
    return watched

"""One remedy to be tried, and what it is tried on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from nanprobe.findings import Finding
from nanprobe.interventions import EditedFile, Treatment
from nanprobe.records import RunRecord, Source, StageName, StageTrace
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.script import NotEditable, Script
from nanprobe.remedies.sources import Sources


class RemedyKind(str, Enum):
    """The families of remedies; the value is what the report calls them."""

    ORDER = "calls in order"
    SAFE = "safe operation"
    DATA = "rows dropped"
    SCALE = "loss scale"
    FUNCTION = "FP32 function"
    OPERAND = "FP32 operand"
    ISLAND = "FP32 island"
    MASTERS = "FP32 master weights"
    EPS = "larger eps"
    OPTIMIZER_EPS = "optimizer eps"
    CLIP = "clipping"
    RATE = "learning rate"
    WARM_UP = "warm-up"
    BF16 = "bfloat16"


@dataclass(frozen=True)
class Candidate:
    """A remedy that could help: what it is in words, and how it is put in."""

    kind: RemedyKind
    text: str  # what to write
    treatment: Treatment
    same_data: bool = True  # the run sees the same batches in the same order, and can be compared step by step
    # From the trace of a run that was put in from outside: the same remedy as lines to write, to be run once more.
    written: Callable[[StageTrace], Candidate | None] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Case:
    """A finding, the run it was made in and the files behind it."""

    finding: Finding
    run: RunRecord
    sources: Sources
    base: Treatment = field(default_factory=Treatment)  # what an earlier remedy, which was not enough, has changed

    @property
    def trace(self) -> StageTrace:
        """The stage that fails."""
        return next(t for t in self.run.stages if t.name is self.finding.stage)

    @property
    def reference(self) -> StageTrace | None:
        """The FP32 stage, where it is another one than that which fails, and has run."""
        if self.finding.stage is StageName.FP32:
            return None
        return next((t for t in self.run.stages if t.name is StageName.FP32 and t.steps), None)

    @property
    def facts(self) -> dict[str, object]:
        """What the script was seen to use, in FP32 and in the failing stage; only the first sees all it asks for."""
        first = next((t.facts for t in self.run.stages if t.name is StageName.FP32), {})
        return {**self.trace.facts, **{k: v for k, v in first.items() if v is not None}}

    @property
    def as_written(self) -> bool:
        """Whether the user's own lines decide about precision in the failing stage."""
        return self.trace.name is StageName.FP32 or self.trace.as_written

    @property
    def low_dtype(self) -> bool:
        """Whether the failing stage computes in half precision."""
        return self.trace.dtype != "float32"

    @property
    def computes_half(self) -> bool:
        """Whether the operation at fault computes in half precision."""
        finding = self.finding
        for deep in self.trace.deep_steps:
            for op in deep.ops:
                if deep.step == finding.step and op.op == finding.op and op.source == finding.source and op.outputs:
                    return op.outputs[0].dtype in ("float16", "bfloat16")
        return self.low_dtype

    def script(self) -> Script | None:
        """The file of the finding's line."""
        return self.sources.script(self.finding.source)

    def call_sources(self, *names: str) -> list[Source]:
        """The lines that made these calls, each once, in the order they were first made."""
        found = [c.source for c in self.trace.calls if c.name in names and c.source is not None]
        return list({(s.file, s.line): s for s in found}.values())

    def user_files(self) -> list[str]:
        """The user's files that made calls or ran operations, the training loop's first."""
        places = [c.source for c in self.trace.calls]
        places += [op.source for deep in self.trace.deep_steps for op in deep.ops]
        paths = dict.fromkeys(s.file for s in places if s is not None)
        return [path for path in paths if self.sources.script(path) is not None]

    def edited(self, *scripts: tuple[Script, str], **changes: object) -> Treatment:
        """The base with these files' new texts."""
        texts = {script.path: text for script, text in scripts}
        kept = tuple(i for i in self.base.interventions if not (isinstance(i, EditedFile) and i.path in texts))
        new = tuple(EditedFile(path, text) for path, text in texts.items())
        return _replaced(self.base, (*kept, *new), changes)

    def outside(self, *interventions: object, **changes: object) -> Treatment:
        """The base with these put in from outside."""
        return _replaced(self.base, (*self.base.interventions, *interventions), changes)


def _replaced(base: Treatment, interventions: Iterable[object], changes: dict[str, object]) -> Treatment:
    return replace(base, interventions=tuple(interventions), **changes)  # type: ignore[arg-type]


def finish(case: Case, kind: RemedyKind, text: str, editor: Editor, **changes: object) -> Candidate:
    """The candidate made of an editor's changes. Raises NotEditable."""
    return Candidate(kind, text, case.edited((editor.script, editor.finish()), **changes))


def attempt(case: Case, kind: RemedyKind, text: str, editor: Editor) -> Candidate | None:
    """The same; None where the text does not allow it."""
    try:
        return finish(case, kind, text, editor)
    except NotEditable:
        return None

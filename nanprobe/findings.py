"""What nanprobe says: findings, their kinds and severities, and the verdict.

The catalogue of codes (title, explanation, remedy, source) is `nanprobe.catalogue`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from nanprobe.records import Phase, Source, StageName


class Kind(str, Enum):
    """The cause of a failure, most specific first."""

    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    DATA = "data"
    GRAPH = "graph"
    DIVERGENCE = "divergence"
    MISUSE = "misuse"


class Severity(str, Enum):
    """How much a finding matters: an error makes the run failing, a warning and a note do not."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Status(str, Enum):
    """The run as a whole."""

    FAILING = "failing"
    HEALTHY = "healthy"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class RemedyCost:
    """What a remedy that was tried costs, against the stage that fails; 1.0 is the same."""

    time_ratio: float | None = None  # time of a plain step
    memory_ratio: float | None = None  # largest memory of the run


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to do about a finding."""

    text: str
    verified: bool | None = None  # None: not tried
    steps: int | None = None  # steps it was tried over
    kind: str | None = None  # its family ("loss scale", "FP32 island"); None for what was not tried
    reason: str | None = None  # why it was refused
    cost: RemedyCost | None = None
    final_loss: float | None = None  # mean of its last steps
    reference_loss: float | None = None  # the same of the FP32 stage, over as many steps
    gradient_error: float | None = None  # relative, against FP32
    diff: str | None = None  # the lines to write, as a unified diff; None where they are not known
    losses: tuple[float | None, ...] = ()  # by step


@dataclass(frozen=True, slots=True)
class Verification:
    """Every remedy that was tried for the verdict, and how the trying ended."""

    code: str  # the verdict's
    stage: StageName
    tried: tuple[Remedy, ...]  # in the order they were tried
    runs: int  # runs of the stage
    seconds: float  # they took
    budget: float  # seconds
    stopped: str | None = None  # why not everything was tried; None when all was


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where in the data a finding points."""

    index: int | None = None  # which batch
    rows: tuple[int, ...] = ()  # rows of the batch
    dataset_indices: tuple[int, ...] = ()
    columns: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainValue:
    """A tensor on the way from an origin to its symptom, beside its re-check; counts of elements."""

    dtype: str
    numel: int
    nan_count: int
    inf_count: int
    abs_max: float | None  # largest finite magnitude; None when it was not measured
    recheck_nonfinite: int | None = None  # None when there was no re-check
    recheck_abs_max: float | None = None
    flushed_fraction: float = 0.0  # of the elements that are not 0 in the re-check


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A stop on the way from where a fault began to where it showed: an operation, or a tensor at either end."""

    op: str | None  # "aten.mul.Tensor"; None for a tensor
    tensor: str | None  # "batch x", "loss", "gradient of a.weight"; None for an operation
    module: str | None
    source: Source | None
    phase: Phase | None
    before: ChainValue | None  # the input that carried the fault, at the origin the largest; None for a tensor
    after: ChainValue | None  # what came out; None when it was not measured
    skipped: int | None = 0  # operations left out between the link before and this one; None: some, not counted


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found, with its evidence."""

    code: str  # "NP101"
    kind: Kind
    severity: Severity
    title: str  # one line, with names and numbers in it
    stage: StageName
    step: int | None = None
    phase: Phase | None = None
    op: str | None = None
    module: str | None = None
    parameter: str | None = None
    source: Source | None = None
    batch: BatchPlace | None = None
    evidence: dict[str, object] = field(default_factory=dict)  # numbers by name; see EVIDENCE_LABELS in reports
    why: str = ""
    remedies: tuple[Remedy, ...] = ()
    parameters: tuple[str, ...] = ()  # every parameter it touches
    chain: tuple[ChainLink, ...] = ()  # from its origin to its symptom; empty where no operation leads there


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One parameter in the per-layer table."""

    name: str
    module: str | None
    kind: Kind | None
    grad_abs_max: dict[str, float | None]  # per stage, unscaled
    flushed_fraction: dict[str, float | None]
    lost_norm_fraction: dict[str, float | None]
    headroom_bits: float | None  # log2(65504 / largest scaled gradient) in the amp stage, else in the raw stage
    nonfinite_steps: dict[str, int]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole answer: status, verdict and everything else that was found."""

    status: Status
    verdict: Finding | None
    findings: tuple[Finding, ...]  # the verdict first
    layers: tuple[LayerRow, ...]
    reasons: tuple[str, ...] = ()  # when inconclusive: what could not be told, and why
    verification: Verification | None = None  # of the verdict's remedies, where they were tried (`--verify`)

    def with_verification(self, verification: Verification) -> Diagnosis:
        """The same with what was tried: verified remedies first, then what is advised, then what was refused."""
        if self.verdict is None or self.verdict.code != verification.code:
            return self
        proven = tuple(r for r in verification.tried if r.verified)
        refused = tuple(r for r in verification.tried if not r.verified)
        advised = tuple(r for r in self.verdict.remedies if r.verified is None)
        verdict = replace(self.verdict, remedies=(*proven, *advised, *refused))
        findings = tuple(verdict if f is self.findings[0] else f for f in self.findings)
        return replace(self, verdict=verdict, findings=findings, verification=verification)

"""Remedies tried for real: the failing stage run again with each of them, within a budget of seconds."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanprobe.findings import Diagnosis, Finding, Remedy, RemedyCost, Verification
from nanprobe.interventions import Treatment
from nanprobe.plan import DEFAULT_BUDGET
from nanprobe.protocol import StageRunner
from nanprobe.records import Outcome, RunRecord, StageTrace
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind
from nanprobe.remedies.island_lines import island
from nanprobe.remedies.islands import smallest_island, suspects
from nanprobe.remedies.judge import Judgement, judge, steps_wanted
from nanprobe.remedies.sources import Sources
from nanprobe.remedies.table import ISLAND_CODES, candidates

_ROUNDS = 4  # a remedy that is right and not enough is carried on to the next finding so many times
_CARRIED_ON = (RemedyKind.SAFE, RemedyKind.FUNCTION, RemedyKind.OPERAND, RemedyKind.EPS, RemedyKind.DATA)
_INTERRUPTED = "interrupted by Ctrl-C"


class _OutOfBudget(Exception):
    """The next run could not end in time."""


def verify(run: RunRecord, diagnosis: Diagnosis, stages: StageRunner, budget: float = DEFAULT_BUDGET) -> Verification:
    """Try the verdict's remedies, the most promising first. Ctrl-C ends it, and keeps what is known.

    Raises ValueError when there is no verdict, and so nothing to try.
    """
    if diagnosis.verdict is None:
        raise ValueError("there is no verdict; nothing to verify")
    return _Verifier(Case(diagnosis.verdict, run, Sources(str(Path.cwd()))), stages, budget).run()


@dataclass
class _Verifier:
    case: Case
    stages: StageRunner
    budget: float
    tried: list[Remedy] = field(default_factory=list)
    runs: int = 0
    stopped: str | None = None

    def __post_init__(self) -> None:
        self._started = time.monotonic()
        self._longest = self._predict()
        self._known: dict[Treatment, tuple[StageTrace, Judgement]] = {}

    def run(self) -> Verification:
        try:
            for candidate in candidates(self.case):
                self._try(candidate)
            if self.case.finding.code in ISLAND_CODES:
                self._search_island()
        except _OutOfBudget:
            self.stopped = f"the budget of {self.budget:g} s is used up"
        except KeyboardInterrupt:
            self.stages.cut_short(self._label())
            self.stopped = _INTERRUPTED
        finding = self.case.finding
        seconds = time.monotonic() - self._started
        return Verification(
            finding.code, finding.stage, tuple(self.tried), self.runs, seconds, self.budget, self.stopped
        )

    def _try(self, candidate: Candidate) -> None:
        """Run a candidate; where it is right and not enough, carry it on; write down what came of it."""
        trace, judgement = self._measure(candidate)
        case = self.case
        try:
            for _ in range(_ROUNDS):
                following = None if judgement.verified else self._next(case, candidate, judgement)
                if following is None:
                    break
                more = self._measure(following[1])
                (case, candidate), (trace, judgement) = following, more
            if judgement.verified and candidate.written is not None:
                candidate, trace, judgement = self._written(candidate, trace, judgement)
        finally:  # what is known by now counts, also when the time is up
            self._note(candidate, trace, judgement)

    def _next(self, case: Case, candidate: Candidate, judgement: Judgement) -> tuple[Case, Candidate] | None:
        """The same kind of remedy for what fails now, on top of the one that was tried."""
        finding = judgement.next_finding
        if finding is None or candidate.kind not in _CARRIED_ON or _same_place(finding, case.finding):
            return None
        trace = self._known[candidate.treatment][0]
        others = tuple(t for t in case.run.stages if t.name is not trace.name)
        sources = self.case.sources.with_edits(candidate.treatment.edits)
        after = Case(finding, replace(case.run, stages=(*others, trace)), sources, candidate.treatment)
        more = next((c for c in candidates(after) if c.kind is candidate.kind), None)
        return None if more is None else (after, replace(more, text=f"{candidate.text}; {more.text}"))

    def _written(
        self, candidate: Candidate, trace: StageTrace, judgement: Judgement
    ) -> tuple[Candidate, StageTrace, Judgement]:
        """The remedy as lines to write, once they have proven themselves; else as it was put in from outside."""
        assert candidate.written is not None
        written = candidate.written(trace)
        if written is None:
            return candidate, trace, judgement
        new_trace, new_judgement = self._measure(written)
        return (written, new_trace, new_judgement) if new_judgement.verified else (candidate, trace, judgement)

    def _search_island(self) -> None:
        """The smallest set of modules to keep in FP32."""
        found = smallest_island(suspects(self.case.trace, self.case.finding), self._is_sound)
        if found is None:
            return
        self._try(island(self.case, sorted(found)))

    def _is_sound(self, modules: tuple[str, ...]) -> bool:
        return self._measure(island(self.case, sorted(modules)))[1].verified

    def _measure(self, candidate: Candidate) -> tuple[StageTrace, Judgement]:
        """One run of the failing stage under a candidate's treatment, and what came of it; none is run twice.

        Raises _OutOfBudget when it could not end in time.
        """
        treatment = candidate.treatment
        if treatment in self._known:
            return self._known[treatment]
        left = self.budget - (time.monotonic() - self._started)
        if self._longest > left:
            raise _OutOfBudget
        self.runs += 1
        label = self._label()
        plan, finding = self.stages.plan, self.case.finding
        trace = self.stages.run_apart(
            finding.stage,
            label,
            replace(
                plan,
                steps=steps_wanted(self.case, plan.steps),
                until_failure=False,
                timeout=min(plan.timeout, max(left, 1.0)),
                init_scale=plan.init_scale if treatment.init_scale is None else treatment.init_scale,
                growth_interval=plan.growth_interval
                if treatment.growth_interval is None
                else treatment.growth_interval,
                dtype=treatment.dtype or plan.dtype,
            ),
            interventions=treatment.interventions,
            facts=dict(treatment.facts),
            deep_steps=() if finding.step is None else (max(finding.step, 0),),
        )
        # What the script saved in this run is of no use to anyone, and may be large.
        shutil.rmtree(self.stages.directory / "stages" / label / "overlay", ignore_errors=True)
        if trace.outcome is Outcome.TIMEOUT and left < plan.timeout:
            raise _OutOfBudget
        self._longest = max(self._longest, trace.seconds)
        self._known[treatment] = trace, judge(self.case, trace, candidate.same_data)
        return self._known[treatment]

    def _label(self) -> str:
        return f"remedy-{self.runs}"

    def _predict(self) -> float:
        """Seconds that one run may take: as long as the failing stage did for as many steps."""
        trace = self.case.trace
        steps = steps_wanted(self.case, self.stages.plan.steps)
        return trace.seconds * max(1.0, steps / max(1, len(trace.steps)))

    def _note(self, candidate: Candidate, trace: StageTrace, judgement: Judgement) -> None:
        edits = candidate.treatment.edits
        remedy = Remedy(
            text=candidate.text,
            verified=judgement.verified,
            steps=len(trace.steps),
            kind=candidate.kind.value,
            reason=judgement.reason,
            cost=_cost(self.case.trace, trace),
            final_loss=judgement.final_loss,
            reference_loss=judgement.reference_loss,
            gradient_error=judgement.gradient_error,
            diff=self.case.sources.diff(edits) or None if edits else None,
            losses=tuple(step.loss for step in trace.steps),
        )
        self.tried.append(remedy)
        sign = "helps" if remedy.verified else f"refused, {remedy.reason}"
        self.stages.progress.notice(f"{candidate.text}: {sign}")


def _same_place(one: Finding, other: Finding) -> bool:
    return one.code == other.code and one.source == other.source and one.step == other.step


def _cost(failing: StageTrace, treated: StageTrace) -> RemedyCost:
    return RemedyCost(_ratio(failing, treated, "step_seconds"), _ratio(failing, treated, "peak_memory"))


def _ratio(failing: StageTrace, treated: StageTrace, name: str) -> float | None:
    before, after = failing.facts.get(name), treated.facts.get(name)
    if not isinstance(before, (int, float)) or not isinstance(after, (int, float)) or before <= 0:
        return None
    return float(after) / float(before)

"""The figures of a search: how often each kind of fault was found, and the programs that were not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.judging import Expected, Grade
from fuzz.programs import Program
from fuzz.rendering import render
from nanprobe.findings import Diagnosis, Finding

GOOD = (Grade.RIGHT, Grade.HEALTHY)
COLUMNS = (Grade.RIGHT, Grade.KIND, Grade.WRONG, Grade.MISSED, Grade.HEALTHY, Grade.FALSE_ALARM)


@dataclass(frozen=True)
class Miss:
    """A program that was judged wrongly."""

    program: Program
    expected: Expected
    diagnosis: Diagnosis
    grade: Grade

    def describe(self) -> str:
        """What went wrong, and a script to try it with."""
        found = [_describe(f) for f in self.diagnosis.findings[:5]]
        heads = [f"# {self.grade.value}; {self.program.fault}", f"# expected: {self.expected}", "# found:", *found]
        return (
            "\n".join(heads + [f"#   {reason}" for reason in self.diagnosis.reasons])
            + "\n"
            + render(self.program).source
        )


@dataclass
class Tally:
    """Grades by kind of fault."""

    grades: dict[str, Counter[Grade]] = field(default_factory=dict)
    unsound: Counter[str] = field(default_factory=Counter)  # programs that are no example of anything
    misses: list[Miss] = field(default_factory=list)

    def add(self, kind: str | None, miss: Miss) -> None:
        """Count one judgement; keep the program when it was wrong."""
        self.grades.setdefault(kind or "no fault", Counter())[miss.grade] += 1
        if miss.grade not in GOOD:
            self.misses.append(miss)

    def lines(self) -> list[str]:
        """The table."""
        width = max(map(len, self.grades), default=0)
        yields = [f"{'':{width}}  " + "  ".join(f"{_short(grade):>11}" for grade in COLUMNS)]
        for kind, grades in self.grades.items():
            yields.append(f"{kind:{width}}  " + _cells(grades))
        total = sum(self.grades.values(), Counter[Grade]())
        yields.append(f"{'all':{width}}  " + _cells(total))
        return yields

    def save(self, folder: Path) -> None:
        """Write the scripts of the misses into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for number, miss in enumerate(self.misses):
            kind = miss.program.fault.kind if miss.program.fault else "sound"
            (folder / f"{number:03}-{kind}-{miss.grade.name.lower()}.py").write_text(miss.describe(), encoding="utf-8")


def _describe(finding: Finding) -> str:
    line = finding.source.line if finding.source else None
    place = f"{finding.stage.value}@{finding.step} line {line} {finding.op or ''}"
    return f"#   {finding.code} {finding.severity.value} {place}: {finding.title} {finding.batch or ''}"


def _short(grade: Grade) -> str:
    return {Grade.RIGHT: "right", Grade.KIND: "kind only", Grade.WRONG: "wrong"}.get(grade, grade.value)


def _cells(grades: Counter[Grade]) -> str:
    return "  ".join(f"{grades[grade] or '':>11}" for grade in COLUMNS)


def total(tallies: Iterable[Tally]) -> Tally:
    """Several tallies as one."""
    whole = Tally()
    for tally in tallies:
        for kind, grades in tally.grades.items():
            whole.grades.setdefault(kind, Counter()).update(grades)
        whole.unsound.update(tally.unsound)
        whole.misses += tally.misses
    return whole

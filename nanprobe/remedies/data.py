"""Rows of the data left out: from outside first, which shows how many there are, then as lines to write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from nanprobe.interventions import DropRows
from nanprobe.records import StageTrace
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.script import NotEditable

_ABSURD = 1e15  # Source: NP305's own rule
_SHOWN = 6


def dropped_rows(case: Case) -> Iterator[Candidate]:
    """The finding's samples and whatever else is as bad, where a DataLoader hands them out."""
    batch = case.finding.batch
    # The rows, and not the whole batch they are in.
    named = batch is not None and bool(batch.rows) and len(batch.rows) == len(batch.dataset_indices)
    indices = tuple(batch.dataset_indices) if batch is not None and named else ()
    if not case.trace.batches and not indices:
        return
    size = case.finding.evidence.get("input_abs_max")
    largest = float(size) / 100.0 if isinstance(size, float) and size > _ABSURD else None
    drop = DropRows(indices, nonfinite=True, largest=largest)
    yield Candidate(RemedyKind.DATA, _name(indices), case.outside(drop), written=lambda trace: _written(case, trace))


def _name(indices: tuple[int, ...]) -> str:
    if not indices:
        return "leave out the rows that are not finite"
    shown = ", ".join(str(i) for i in indices[:_SHOWN]) + (" and more" if indices[_SHOWN:] else "")
    return f"leave sample{'' if len(indices) == 1 else 's'} {shown} of the dataset out"


def _written(case: Case, trace: StageTrace) -> Candidate | None:
    """The DataLoader over a subset without the samples that were dropped."""
    dropped = trace.facts.get("dropped_samples")
    if not isinstance(dropped, (list, tuple)) or not dropped:
        return None
    indices = tuple(int(i) for i in dropped)
    for path in case.user_files():
        script = case.sources.script(path)
        calls = [] if script is None else [c for c in script.calls("DataLoader") if c.args]
        if script is None or len(calls) != 1 or isinstance(calls[0].args[0], ast.Starred):
            continue
        dataset = calls[0].args[0]
        name = script.source(dataset)
        statement = script.statement(calls[0].lineno)
        if statement is None:
            continue
        editor = Editor(script)
        try:
            if not isinstance(dataset, ast.Name):
                name = "dataset" if "dataset" not in script.names() else "all_samples"
                editor.before(statement, f"{name} = {script.source(dataset)}")
            left_out = ", ".join(str(i) for i in sorted(indices))
            editor.before(statement, f"sound = [i for i in range(len({name})) if i not in {{{left_out}}}]")
            editor.replace(dataset, f"torch.utils.data.Subset({name}, sound)")
            found = finish(case, RemedyKind.DATA, _name(tuple(sorted(indices))), editor)
            return replace(found, same_data=False)
        except NotEditable:
            continue
    return None

"""An FP32 island as lines to write: a decorator on the modules' own forward, or a loop over them by name."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from nanprobe.interventions import Islands
from nanprobe.records import StageName, StageTrace
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor
from nanprobe.remedies.precision import optimizer_calls
from nanprobe.remedies.script import NotEditable, Script, call_name
from nanprobe.remedies.snippets import add_snippet


def island(case: Case, modules: Sequence[str]) -> Candidate:
    """These modules in FP32, put in from outside first."""
    names = " and ".join([", ".join(modules[:-1]), modules[-1]] if modules[1:] else modules)
    text = f"keep {names} in FP32" + (", out of autocast" if case.trace.name is StageName.AMP else "")
    return Candidate(
        RemedyKind.ISLAND,
        text,
        case.outside(Islands(tuple(modules))),
        written=lambda trace: _written(case, trace, modules, text) if case.as_written else None,
    )


def _written(case: Case, trace: StageTrace, modules: Sequence[str], text: str) -> Candidate | None:
    try:
        return _decorated(case, trace, modules, text) or _by_name(case, modules, text)
    except NotEditable:
        return None


def _decorated(case: Case, trace: StageTrace, modules: Sequence[str], text: str) -> Candidate | None:
    """The decorator, where all these modules are of classes in one file of the user's."""
    seen = trace.facts.get("islands")
    places = [seen.get(m) for m in modules] if isinstance(seen, dict) else []
    found = [(str(p[1]), int(p[2])) for p in places if isinstance(p, (list, tuple)) and len(p) == 3]
    if not found or len(found) < len(modules) or len({file for file, _ in found}) != 1:
        return None
    script = case.sources.script(found[0][0])
    functions = [] if script is None else [script.function(line) for line in sorted({line for _, line in found})]
    if script is None or not all(functions):
        return None
    editor = Editor(script)
    add_snippet(editor, _snippet(case), "in_fp32")
    for function in functions:
        assert function is not None
        indent = script.line(function.lineno)[: function.col_offset]
        editor.insert(script.line_start(function.lineno), f"{indent}@in_fp32\n")
    return finish(case, RemedyKind.ISLAND, text, editor)


def _by_name(case: Case, modules: Sequence[str], text: str) -> Candidate | None:
    """The loop, above the line that makes the optimizer of this model."""
    models = case.trace.facts.get("models")
    several = isinstance(models, (list, tuple)) and len(models) > 1
    for script, call in optimizer_calls(case):
        model = _model_of(script, call)
        statement = script.statement(call.lineno)
        if model is None or statement is None:
            continue
        names = [m.removeprefix(f"{model}.") for m in modules] if several else list(modules)
        if several and not all(m.startswith(f"{model}.") for m in modules):
            continue
        listed = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
        editor = Editor(script)
        add_snippet(editor, _snippet(case), "in_fp32")
        editor.before(
            statement,
            f"for part in map({model}.get_submodule, ({listed})):  # these stay in FP32",
            "    part.forward = in_fp32(part.forward)",
        )
        return finish(case, RemedyKind.ISLAND, text, editor)
    return None


def _snippet(case: Case) -> str:
    return "in_fp32_autocast" if case.trace.name is StageName.AMP else "in_fp32"


def _model_of(script: Script, call: ast.Call) -> str | None:
    """`model` of `AdamW(model.parameters(), ...)`."""
    for argument in call.args[:1]:
        for node in ast.walk(argument):
            if (
                isinstance(node, ast.Call)
                and call_name(node) in ("parameters", "named_parameters")
                and isinstance(node.func, ast.Attribute)
            ):
                return script.source(node.func.value)
    return None

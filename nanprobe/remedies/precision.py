"""A wider format where it is needed: a function in FP32, an operand as float, FP32 master weights, bfloat16."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator

from nanprobe.interventions import MasterWeights
from nanprobe.records import StageName
from nanprobe.remedies.candidate import Candidate, Case, RemedyKind, finish
from nanprobe.remedies.editor import Editor, set_keywords
from nanprobe.remedies.matching import PRODUCTS, matches, operands, operation_names
from nanprobe.remedies.script import NotEditable, Script, call_name
from nanprobe.remedies.snippets import SNIPPET_NAMES, add_snippet

_LOOP_CALLS = frozenset({"backward", "step", "zero_grad"})


def function_in_fp32(case: Case) -> Iterator[Candidate]:
    """The function around the finding's line in FP32, with a decorator; none for a training loop."""
    script, source = case.script(), case.finding.source
    if script is None or source is None or not case.as_written:
        return
    function = script.function(source.line)
    if function is None or _trains(function) or _is_ours(script, function):
        return
    if any(isinstance(d, ast.Name) and d.id == "in_fp32" for d in function.decorator_list):
        return
    owner = script.owner(function)
    name = f"{owner.name}.{function.name}" if owner else function.name
    plain = case.trace.name is StageName.AMP and owner is not None and function.name == "forward"
    editor = Editor(script)
    try:
        add_snippet(editor, "in_fp32_autocast" if plain else "in_fp32", "in_fp32")
        indent = script.line(function.lineno)[: function.col_offset]
        editor.insert(script.line_start(function.lineno), f"{indent}@in_fp32\n")
        yield finish(case, RemedyKind.FUNCTION, f"run {name} in FP32 (line {function.lineno})", editor)
    except NotEditable:
        return


def operand_in_fp32(case: Case) -> Iterator[Candidate]:
    """`.float()` on what the operation at fault reads."""
    script, source = case.script(), case.finding.source
    if script is None or source is None or not case.as_written:
        return
    if case.trace.name is StageName.AMP and PRODUCTS & set(operation_names(case.finding)):
        return  # autocast casts the inputs of products down again
    for expression in matches(script, case.finding):
        inputs = [o for o in operands(expression) if not _is_number(script, o)]
        if not inputs or script.source(inputs[0]).endswith(".float()"):
            continue
        editor = Editor(script)
        editor.replace(inputs[0], f"{script.operand(inputs[0])}.float()")
        try:
            text = f"line {source.line}: `{script.operand(inputs[0])}.float()`"
            yield finish(case, RemedyKind.OPERAND, text, editor)
        except NotEditable:
            continue


def _is_number(script: Script, node: ast.expr) -> bool:
    """Whether an operand is plainly no tensor: a literal, or a name in capitals."""
    if isinstance(node, (ast.Constant, ast.UnaryOp, ast.Starred)):
        return True
    return (
        isinstance(node, (ast.Name, ast.Attribute))
        and script.source(node).rpartition(".")[2].isupper()
        and len(script.source(node).rpartition(".")[2]) > 1
    )


def master_weights(case: Case) -> Iterator[Candidate]:
    """FP32 copies of the weights for the optimizer; where autocast is used as well, FP32 weights altogether."""
    if not (case.facts.get("low_weights") or case.facts.get("asked_low")) or not case.as_written:
        return
    if case.facts.get("autocast_dtype"):
        yield from _full_weights(case)
        return
    text = "give the optimizer FP32 master copies of the weights"
    for script, call in optimizer_calls(case):
        editor = Editor(script)
        try:
            statement = script.statement(call.lineno)
            if not isinstance(statement, ast.Assign) or statement.value is not call:
                continue
            add_snippet(editor, "fp32_masters", "fp32_masters")
            editor.after(statement, f"fp32_masters({script.source(statement.targets[0])})")
            yield finish(case, RemedyKind.MASTERS, text, editor)
            return
        except NotEditable:
            continue
    yield Candidate(RemedyKind.MASTERS, text, case.outside(MasterWeights()))


def _full_weights(case: Case) -> Iterator[Candidate]:
    """`.half()` of the model taken out: autocast casts copies, and the optimizer keeps FP32."""
    for path in case.user_files():
        script = case.sources.script(path)
        statements = (
            [] if script is None else [(c, script.statement(c.lineno)) for c in script.calls("half", "bfloat16")]
        )
        for call, statement in statements:
            if (
                script is None
                or not isinstance(statement, (ast.Expr, ast.Assign))
                or not isinstance(call.func, ast.Attribute)
            ):
                continue
            editor = Editor(script)
            try:
                if isinstance(statement, ast.Expr) and statement.value is call:
                    editor.delete(statement)
                else:
                    editor.replace(call, script.source(call.func.value))
                text = f"line {call.lineno}: leave the weights in FP32, autocast casts copies of them"
                yield finish(case, RemedyKind.MASTERS, text, editor, facts=(("low_weights", None), ("asked_low", None)))
            except NotEditable:
                continue


def bfloat16(case: Case) -> Iterator[Candidate]:
    """bfloat16 for float16 everywhere; a GradScaler is switched off, as there is nothing to scale."""
    if case.trace.dtype != "float16":
        return
    if not case.as_written:
        yield Candidate(RemedyKind.BF16, "use bfloat16 when you add autocast", case.outside(dtype="bfloat16"))
        return
    edits = []
    for path in case.user_files():
        script = case.sources.script(path)
        if script is not None and (text := _in_bfloat16(script)) is not None:
            edits.append((script, text))
    if edits:
        facts: list[tuple[str, object]] = [("scaler_enabled", False)]
        facts += [(name, "bfloat16") for name in ("autocast_dtype", "low_weights", "asked_low") if case.facts.get(name)]
        treatment = case.edited(*edits, facts=tuple(facts))
        yield Candidate(RemedyKind.BF16, "bfloat16 in place of float16", treatment)


def _in_bfloat16(script: Script) -> str | None:
    """The file's text in bfloat16; None where there is nothing to change, or it cannot be."""
    try:
        editor = Editor(script)
        return editor.finish() if _ask_for_bfloat16(editor) else None
    except NotEditable:
        return None


def _ask_for_bfloat16(editor: Editor) -> bool:
    script, changed = editor.script, False
    for node in ast.walk(script.tree):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in ("float16", "half")
            and script.source(node).startswith("torch.")
        ):
            editor.replace(node, "torch.bfloat16")
            changed = True
        elif isinstance(node, ast.Call) and call_name(node) == "half" and isinstance(node.func, ast.Attribute):
            start, end = script.span(node.func.value)
            editor.replace(node, f"{script.text[start:end]}.bfloat16()")
            changed = True
        elif isinstance(node, ast.Call) and call_name(node) == "GradScaler":
            with contextlib.suppress(NotEditable):  # settings unpacked with **; a scaler that is on does no harm
                set_keywords(editor, node, enabled="False")
            changed = True
        elif isinstance(node, ast.Call) and call_name(node) == "autocast" and not _names_format(node):
            set_keywords(editor, node, dtype="torch.bfloat16")
            changed = True
    return changed


def _names_format(call: ast.Call) -> bool:
    return len(call.args) > 1 or any(k.arg in ("dtype", None) for k in call.keywords)


def optimizer_calls(case: Case) -> Iterator[tuple[Script, ast.Call]]:
    """Where the user's files make the optimizers that step."""
    names = {(s.optimizer or "").partition("#")[0] for s in case.trace.steps}
    for path in case.user_files():
        script = case.sources.script(path)
        if script is not None:
            yield from ((script, call) for call in script.calls(*names))


def _is_ours(script: Script, function: ast.FunctionDef) -> bool:
    """Whether a function is part of a snippet that an earlier remedy has put in."""
    snippets = [n for n in script.tree.body if isinstance(n, ast.FunctionDef) and n.name in SNIPPET_NAMES]
    return any(function is n for snippet in snippets for n in ast.walk(snippet))


def _trains(function: ast.FunctionDef) -> bool:
    """Whether a function drives the training, and is no part of the model."""
    return any(isinstance(n, ast.Call) and call_name(n) in _LOOP_CALLS for n in ast.walk(function))

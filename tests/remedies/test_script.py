"""Edits of a file's text: where they go, what they leave alone, what they refuse."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from nanprobe.remedies.editor import Editor, set_keywords, unified_diff
from nanprobe.remedies.script import NotEditable, Script
from nanprobe.remedies.snippets import SNIPPET_NAMES, add_snippet, snippet

LOOP = """import torch


def train():
    for x in data:
        loss = model(x)
        loss.backward()
        opt.step()  # one step
"""


def edit(text: str) -> Editor:
    return Editor(Script("train.py", text))


def test_lines_go_in_with_the_statements_own_indentation() -> None:
    editor = edit(LOOP)
    editor.before(editor.script.whole_statement(7), "opt.zero_grad()")
    editor.after(editor.script.whole_statement(8), "scaler.update()")
    assert editor.finish().splitlines()[6:] == [
        "        opt.zero_grad()",
        "        loss.backward()",
        "        opt.step()  # one step",
        "        scaler.update()",
    ]


def test_a_file_without_a_last_newline_can_be_continued() -> None:
    editor = edit("x = 1\nstep()")
    editor.after(editor.script.whole_statement(2), "update()")
    assert editor.finish() == "x = 1\nstep()\nupdate()\n"


def test_tabs_stay_tabs() -> None:
    editor = edit("for x in d:\n\tstep()\n")
    editor.after(editor.script.whole_statement(2), "update()")
    assert editor.finish() == "for x in d:\n\tstep()\n\tupdate()\n"


def test_several_statements_on_a_line_are_left_alone() -> None:
    editor = edit("a = 1; step()\n")
    second = editor.script.tree.body[1]
    with pytest.raises(NotEditable, match="several statements"):
        editor.before(second, "b = 2")


def test_a_node_behind_letters_of_several_bytes_is_found() -> None:
    editor = edit('s = "größer"; y = log(x)\n')
    call = next(editor.script.calls("log"))
    assert editor.script.source(call) == "log(x)"
    editor.replace(call.args[0], "x.clamp(min=1)")
    assert editor.finish() == 's = "größer"; y = log(x.clamp(min=1))\n'


def test_the_only_statement_of_a_block_leaves_a_pass() -> None:
    editor = edit("for x in d:\n    update()\n")
    editor.delete(editor.script.whole_statement(2))
    assert editor.finish() == "for x in d:\n    pass\n"


def test_overlapping_changes_are_refused() -> None:
    editor = edit("y = log(x)\n")
    call = next(editor.script.calls("log"))
    editor.replace(call, "x")
    editor.replace(call.args[0], "z")
    with pytest.raises(NotEditable, match="overlap"):
        editor.finish()


def test_a_change_that_is_no_python_is_refused() -> None:
    editor = edit("y = log(x)\n")
    editor.replace(next(editor.script.calls("log")), "(")
    with pytest.raises(NotEditable, match="does not parse"):
        editor.finish()


def test_no_change_is_refused() -> None:
    with pytest.raises(NotEditable, match="nothing to change"):
        edit("y = 1\n").finish()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("GradScaler()", "GradScaler(init_scale=2.0)"),
        ("GradScaler(device)", "GradScaler(device, init_scale=2.0)"),
        ("GradScaler(init_scale=2 ** 16)", "GradScaler(init_scale=2.0)"),
        ("GradScaler(device,)", "GradScaler(device, init_scale=2.0)"),
    ],
)
def test_keywords_are_set_in_place_or_added(call: str, expected: str) -> None:
    editor = edit(f"s = {call}\n")
    set_keywords(editor, next(editor.script.calls("GradScaler")), init_scale="2.0")
    assert editor.finish() == f"s = {expected}\n"


def test_a_compound_statements_head_is_its_own_line() -> None:
    script = Script("x.py", LOOP)
    assert isinstance(script.statement(5), ast.For)
    assert isinstance(script.statement(6), ast.Assign)


def test_a_multi_line_call_belongs_to_one_statement() -> None:
    script = Script("x.py", "y = f(\n    log(x),\n    z,\n)\n")
    assert script.statement(2) is script.statement(4) is script.tree.body[0]
    assert [script.source(e) for e in script.expressions(2)][:2] == ["f(\n    log(x),\n    z,\n)", "log(x)"]


@pytest.mark.parametrize("name", ["in_fp32", "in_fp32_autocast", "fp32_masters", "warm_up"])
def test_snippets_are_whole_functions_below_the_imports(name: str) -> None:
    tree = ast.parse(snippet(name))
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef) and function.name in SNIPPET_NAMES
    editor = edit('"""What it is."""\nimport torch\nimport os\n\nx = 1\n')
    add_snippet(editor, name, function.name)
    text = editor.finish()
    assert text.startswith('"""What it is."""\nimport torch\nimport os\n\n\ndef ')
    assert text.endswith("\n\nx = 1\n")


def test_a_snippet_brings_torch_where_it_is_not_imported() -> None:
    editor = edit("from torch import nn\n\nx = 1\n")
    add_snippet(editor, "warm_up", "warm_up")
    assert "from torch import nn\nimport torch\n" in editor.finish()


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_diff_is_what_git_applies(tmp_path: Path, end: str) -> None:
    old, new = f"a = 1\nb = 2{end}", f"a = 1\nb = 3{end}"
    (tmp_path / "train.py").write_text(old)
    (tmp_path / "x.diff").write_text(unified_diff(old, new, "train.py"))
    subprocess.run(["git", "apply", "x.diff"], cwd=tmp_path, check=True)
    assert (tmp_path / "train.py").read_text() == new

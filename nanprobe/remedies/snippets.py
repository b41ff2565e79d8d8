"""Small functions that a diff adds to the user's file; their text is that of `nanprobe/treatment/snippets`."""

from __future__ import annotations

from functools import cache
from importlib import resources

from nanprobe.remedies.editor import Editor

SNIPPET_NAMES = frozenset({"in_fp32", "fp32_masters", "warm_up"})


@cache
def snippet(name: str) -> str:
    """The text of a snippet, as a block of its own between blank lines."""
    file = resources.files("nanprobe") / "treatment" / "snippets" / f"{name}.txt"
    return file.read_text(encoding="utf-8")


def add_snippet(editor: Editor, name: str, function: str) -> None:
    """Put a snippet below the file's imports, once; `import torch` with it where the file has none."""
    names = editor.script.names()
    if function in names:
        return
    imports = "" if "torch" in _imported(editor) else "import torch\n"
    editor.top(f"{imports}\n\n{snippet(name).strip()}\n")


def _imported(editor: Editor) -> set[str]:
    import ast

    found = set()
    for node in ast.walk(editor.script.tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return found

"""The completion script in a real bash: commands, options and their values; and nothing heavy loaded for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import run_python
from nanprobe.reports.formats import ReportFormat

ROOT = Path(__file__).parents[1]
bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the command `nanprobe` in it, to be put on the PATH, and the completion script."""
    folder = tmp_path_factory.mktemp("bin")
    path = folder / "nanprobe"
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m nanprobe "$@"\n')
    path.chmod(0o755)
    shown = subprocess.run([path, "--show-completion", "bash"], capture_output=True, text=True, check=True)
    (folder / "script.bash").write_text(shown.stdout)
    return folder


def complete(command: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    line = " ".join(f"'{word}'" for word in ("nanprobe", *words))
    script = (
        f"source '{command}/script.bash'\n"
        "complete -p nanprobe >&2\n"
        f"COMP_WORDS=({line}); COMP_CWORD={len(words)}\n"
        '_nanprobe_completion nanprobe\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    env = {**os.environ, "PATH": f"{command}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "--norc"], input=script, capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0 and "-F _nanprobe_completion nanprobe" in done.stderr, done.stderr
    return done.stdout.split()


@bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("comp",), ["compare"]),
        (("report", "--for"), ["--format", "--force"]),
        (("report", "last", "--format", "mar"), ["markdown"]),
        (("diagnose", "train.py", "--format", ""), [form.value for form in ReportFormat]),
        (("diagnose", "--stages", "fp32,"), ["fp32,fp16", "fp32,amp"]),
        (("diagnose", "--fail-on", "error,under"), ["error,underflow"]),
        (("diagnose", "--dtype", "b"), ["bf16"]),
        (("sweep-scale", "--number-format", "e"), ["e4m3", "e5m2"]),
        (("sweep-scale", "--device", "c"), ["cpu", "cuda"]),
        (("compare", "last", "--format", ""), ["terminal", "json", "markdown"]),
        (("check", "--format", "j"), ["json", "junit"]),
        (("explain", "NP20"), ["NP201", "NP202", "NP203", "NP204", "NP205"]),
        (("diagnose", "--recipe", "tiny-g"), ["tiny-gradient"]),
    ],
)
def test_bash_offers(command: Path, words: tuple[str, ...], offered: list[str]) -> None:
    found = complete(command, *words)
    if words[0] == "explain":
        assert set(found) >= {"NP201", "NP202"} and all(code.startswith("NP20") for code in found)
    else:
        assert found == offered


@bash
def test_bash_offers_the_runs_in_the_cache(command: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for stamp in ("20260101-000000", "20260102-000000"):
        run = tmp_path / "nanprobe" / "runs" / f"{stamp}-train-00ff"
        run.mkdir(parents=True)
        (run / "run.json").touch()
    assert complete(command, "report", "") == ["last", "20260102-000000-train-00ff", "20260101-000000-train-00ff"]
    assert complete(command, "compare", "last", "20260101") == ["20260101-000000-train-00ff"]


def test_completing_loads_nothing_heavy(tmp_path: Path) -> None:
    for line in ("nanprobe diagnose --format ", "nanprobe explain NP", "nanprobe report "):
        code = (
            "import os, sys\n"
            f"os.environ.update(_NANPROBE_COMPLETE='complete_bash', COMP_WORDS={line!r}, COMP_CWORD='9')\n"
            "from nanprobe.cli import main\n"
            "try: main([])\nexcept SystemExit: pass\n"
            "assert not {'torch', 'numpy', 'pandas'} & sys.modules.keys()\n"
            "print('done')\n"
        )
        assert "done" in run_python(code, tmp_path)

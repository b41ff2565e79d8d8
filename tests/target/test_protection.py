"""What slips past the overlay is seen, and processes of the script's own are protected too."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanprobe.records import Target
from nanprobe.target.overlay import Overlay
from nanprobe.target.protection import protect_files


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_the_script_are_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "log.txt").write_text("kept")
    script = (
        "import multiprocessing, sys, pathlib\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "from nanprobe.records import Target\n"
        "from nanprobe.target.overlay import Overlay\n"
        "from nanprobe.target.protection import protect_files\n"
        "def overwrite(path):\n"
        "    open(path, 'w').write('changed')\n"
        "if __name__ == '__main__':\n"
        f"    with protect_files(Overlay(pathlib.Path({str(tmp_path / 'overlay')!r}), Target('train.py'))) as watch:\n"
        f"        process = multiprocessing.get_context({method!r}).Process(target=overwrite, args=('log.txt',))\n"
        "        process.start()\n"
        "        process.join()\n"
        "        assert process.exitcode == 0\n"
        "        assert open('log.txt').read() == 'changed'\n"
        "        print(*watch.notices(0))\n"
    )
    (project / "train.py").write_text(script)
    done = subprocess.run([sys.executable, "train.py"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert (project / "log.txt").read_text() == "kept"
    assert ("processes of its own" in done.stdout) is (method != "fork")


def test_what_slips_past_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    with protect_files(Overlay(tmp_path / "overlay", Target("train.py"))) as watch:
        io.FileIO("past.bin", "w").close()
        with open("redirected.txt", "w"):
            pass
        subprocess.run(["true"], check=True)
        subprocess.run(["uname"], check=True, stdout=subprocess.DEVNULL)
        notices = list(watch.notices(3))
    assert notices == [
        f"the script wrote files that nanprobe could not redirect: {project / 'past.bin'}",
        "the script started other programs, whose writes are not redirected: true",
    ]
    assert sorted(os.listdir()) == ["past.bin"]
    assert multiprocessing.util.spawnv_passfds.__module__ == "multiprocessing.util"

"""`nanprobe report` on what the real commands left: the same report again, in every format, and files kept safe."""

from __future__ import annotations

from pathlib import Path

import pytest

import samples
from command import BASE, Result, run_nanprobe, run_python
from nanprobe.findings import Remedy, Verification
from nanprobe.records import StageName
from nanprobe.reports.formats import ReportFormat
from nanprobe.storage import write_run, write_verification

FAILING = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler("cpu")
for step in range(100):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        h = model(torch.randn(8, 8)) * 100
        h = h * (1000 if step > 2 else 1)
    scaler.scale(h.float().pow(2).mean() * 1e-12).backward()
    scaler.step(optimizer)
    scaler.update()
"""
BROKEN = BASE + "train(lambda step: None, steps=1 / 0)\n"
SWEPT = FAILING.replace("step > 2", "False")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every ending, made by the real commands."""
    folder = tmp_path_factory.mktemp("runs")
    for name, text in {"base": BASE, "failing": FAILING, "broken": BROKEN, "swept": SWEPT}.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "healthy.py").write_text("from base import train\ntrain(lambda step: None)\n")
    return folder


@pytest.fixture(scope="module")
def printed(folder: Path) -> dict[str, Result]:
    """What each command printed; the run is in the directory of its name."""
    diagnose = {name: ("diagnose", f"{name}.py", "--steps", "6") for name in ("failing", "healthy", "broken")}
    commands = {
        **diagnose,
        "swept": ("sweep-scale", "swept.py", "--steps", "3", "--scales", "4,1024", "--growth-interval", "7"),
    }
    return {name: run_nanprobe(*words, "--output", f"run-{name}", cwd=folder) for name, words in commands.items()}


ENDINGS = {"failing": 1, "healthy": 0, "broken": 3, "swept": 0}


@pytest.mark.parametrize("name", ENDINGS)
def test_the_report_is_the_one_that_was_printed(name: str, folder: Path, printed: dict[str, Result]) -> None:
    assert printed[name].code == ENDINGS[name], printed[name].both
    again = run_nanprobe("report", f"run-{name}", cwd=folder)
    assert (again.stdout, again.code) == (printed[name].stdout, printed[name].code)
    assert again.stderr == ""


@pytest.mark.parametrize("name", ENDINGS)
def test_the_document_is_the_one_that_was_kept(name: str, folder: Path, printed: dict[str, Result]) -> None:
    kept = folder / f"run-{name}" / ("sweep.json" if name == "swept" else "diagnosis.json")
    again = run_nanprobe("report", f"run-{name}", "--format", "json", cwd=folder)
    assert again.stdout == kept.read_text()
    assert again.code == ENDINGS[name]


@pytest.mark.parametrize("form", ReportFormat)
@pytest.mark.parametrize("name", ["failing", "swept"])
def test_every_format_goes_to_a_file(
    form: ReportFormat, name: str, folder: Path, printed: dict[str, Result], tmp_path: Path
) -> None:
    shown = run_nanprobe("report", f"run-{name}", "--format", form.value, cwd=folder)
    saved = run_nanprobe("report", f"run-{name}", "--format", form.value, "-o", str(tmp_path / "it"), cwd=folder)
    assert saved.code == shown.code == ENDINGS[name]
    assert (tmp_path / "it").read_text() == shown.stdout
    assert saved.stdout == ""
    assert saved.stderr == f"nanprobe: report written to {tmp_path / 'it'}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_the_format_goes_by_the_ending(folder: Path, printed: dict[str, Result], tmp_path: Path) -> None:
    assert run_nanprobe("report", "run-failing", "-o", str(tmp_path / "it.md"), cwd=folder).code == 1
    assert (tmp_path / "it.md").read_text().startswith("## ✖ OVERFLOW")
    refused = run_nanprobe("report", "run-failing", "-o", str(tmp_path / "it.pdf"), cwd=folder)
    assert (refused.code, refused.stdout) == (2, "")
    assert "no format goes by the ending .pdf; say which with --format" in refused.stderr


def test_a_file_of_the_users_is_kept_unless_forced(folder: Path, printed: dict[str, Result], tmp_path: Path) -> None:
    mine = tmp_path / "notes.md"
    mine.write_text("mine")
    mine.chmod(0o644)
    refused = run_nanprobe("report", "run-healthy", "-o", str(mine), cwd=folder)
    assert (refused.code, refused.stdout, mine.read_text()) == (2, "", "mine")
    assert refused.stderr == f"nanprobe: {mine}: is there already; --force writes over it\n"
    assert run_nanprobe("report", "run-healthy", "-o", str(mine), "--force", cwd=folder).code == 0
    assert mine.read_text().startswith("## ✔ HEALTHY")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.md"]


@pytest.mark.parametrize(
    ("target", "message"),
    [("gone/it.md", "there is no directory"), ("", "is a directory; give a file"), ("dangling.md", "is there already")],
)
def test_places_that_cannot_be_written(
    target: str, message: str, folder: Path, printed: dict[str, Result], tmp_path: Path
) -> None:
    (tmp_path / "dangling.md").symlink_to(tmp_path / "elsewhere.md")
    refused = run_nanprobe("report", "run-healthy", "--format", "json", "-o", str(tmp_path / target), cwd=folder)
    assert refused.code == 2
    assert message in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["dangling.md"]


def test_a_device_takes_the_report(folder: Path, printed: dict[str, Result]) -> None:
    assert run_nanprobe("report", "run-healthy", "-o", "/dev/null", "--format", "json", "--force", cwd=folder).code == 0
    assert Path("/dev/null").is_char_device()


def test_all_shows_every_layer(folder: Path, printed: dict[str, Result]) -> None:
    plain = run_nanprobe("report", "run-healthy", cwd=folder).stdout
    every = run_nanprobe("report", "run-healthy", "--all", cwd=folder).stdout
    assert "healthy (2)" in every and "healthy (2)" not in plain


def test_fail_on_is_that_of_diagnose(folder: Path, printed: dict[str, Result]) -> None:
    assert run_nanprobe("report", "run-failing", "--fail-on", "none", cwd=folder).code == 0
    refused = run_nanprobe("report", "run-failing", "--fail-on", "misery", cwd=folder)
    assert (refused.code, refused.stdout) == (2, "")


def test_remedies_that_were_tried_are_shown_again(tmp_path: Path) -> None:
    record, _ = samples.overflow(tmp_path / "run")
    write_run(record)
    tried = (Remedy("run it in FP32", True, 50, kind="FP32 island"),)
    write_verification(tmp_path / "run", Verification("NP101", StageName.AMP, tried, 1, 2.0, 60.0))
    assert "PROVEN REMEDIES" in run_nanprobe("report", "run", cwd=tmp_path).stdout
    assert "### Proven remedies" in run_nanprobe("report", "run", "--format", "markdown", cwd=tmp_path).stdout


def test_last_is_the_newest_run_in_the_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    nothing = run_nanprobe("report", "last", cwd=folder)
    assert nothing.code == 2
    assert f"last: there is no run in {tmp_path / 'nanprobe' / 'runs'}" in nothing.stderr
    first = run_nanprobe("diagnose", "broken.py", "--steps", "2", "--stages", "fp32", cwd=folder)
    second = run_nanprobe("diagnose", "healthy.py", "--steps", "2", "--stages", "fp32", cwd=folder)
    (tmp_path / "nanprobe" / "runs" / "99999999-000000-no-run-0000").mkdir()
    assert run_nanprobe("report", cwd=folder).stdout == second.stdout
    assert run_nanprobe("report", "last", cwd=folder).stdout == second.stdout
    assert run_nanprobe("report", "last~1", cwd=folder).stdout == first.stdout
    assert "last~2: there are 2 runs in" in run_nanprobe("report", "last~2", cwd=folder).stderr
    newest = max(path.name for path in (tmp_path / "nanprobe" / "runs").iterdir() if "healthy" in path.name)
    assert run_nanprobe("report", newest, cwd=folder).stdout == second.stdout


def test_reading_a_run_writes_nothing_and_loads_no_torch(folder: Path, printed: dict[str, Result]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code = (
        "import sys\nfrom nanprobe.cli import main\n"
        "assert main(['report', 'run-failing']) == 1 and main(['report', 'run-swept', '--format', 'json']) == 0\n"
        "assert not {'torch', 'pandas'} & sys.modules.keys(), sys.modules.keys()\n"
    )
    assert "OVERFLOW" in run_python(code, folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

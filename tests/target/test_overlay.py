"""Whatever a script does to its files, the real ones stay as they are, and the script sees what it has done."""

from __future__ import annotations

import bz2
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from nanprobe.patching import Patches
from nanprobe.records import Target
from nanprobe.target.file_patches import patch_files
from nanprobe.target.library_patches import patch_libraries
from nanprobe.target.overlay import Overlay

Snapshot = dict[str, bytes | None]


def snapshot(folder: Path) -> Snapshot:
    """Every file below a folder with its bytes, every directory with None."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's project with a checkpoint, a log and a directory of checkpoints in it."""
    folder = tmp_path / "project"
    (folder / "runs" / "checkpoint-1").mkdir(parents=True)
    (folder / "runs" / "checkpoint-1" / "model.pt").write_bytes(b"one")
    (folder / "ckpt.pt").write_bytes(b"the user's weights")
    (folder / "log.txt").write_text("first line\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def protected(project: Path, tmp_path: Path) -> Iterator[Path]:
    """The project, protected; afterwards it must be what it was."""
    before = snapshot(project)
    patches = Patches()
    overlay = Overlay(tmp_path / "overlay", Target("train.py"))
    watch = patch_libraries(overlay, patches)
    patch_files(overlay, patches)
    try:
        yield project
    finally:
        watch.stop()
        patches.undo()
        os.chdir(project)
    assert snapshot(project) == before


def write_open() -> bytes:
    with open("ckpt.pt", "wb") as file:
        file.write(b"new")
    return b"new"


def append_open() -> bytes:
    with open("ckpt.pt", "ab") as file:
        file.write(b"!")
    return b"the user's weights!"


def update_open() -> bytes:
    with open("ckpt.pt", "r+b") as file:
        file.write(b"THE")
    return b"THE user's weights"


def write_os() -> bytes:
    descriptor = os.open("ckpt.pt", os.O_WRONLY | os.O_TRUNC)
    os.write(descriptor, b"new")
    os.close(descriptor)
    return b"new"


def write_path() -> bytes:
    Path("ckpt.pt").write_bytes(b"new")
    return b"new"


def write_bytes_name() -> bytes:
    with open(b"ckpt.pt", "wb") as file:
        file.write(b"new")
    return b"new"


def replace_atomically() -> bytes:
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        file.write(b"new")
    os.replace(file.name, "ckpt.pt")
    return b"new"


def move_from_temporary_directory() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x").write_bytes(b"new")
        shutil.move(os.path.join(folder, "x"), "ckpt.pt")
    return b"new"


def copy_over() -> bytes:
    shutil.copy("log.txt", "ckpt.pt")
    return b"first line\n"


def truncate() -> bytes:
    os.truncate("ckpt.pt", 3)
    return b"the"


@pytest.mark.parametrize(
    "change",
    [
        write_open,
        append_open,
        update_open,
        write_os,
        write_path,
        write_bytes_name,
        replace_atomically,
        move_from_temporary_directory,
        copy_over,
        truncate,
    ],
)
def test_a_changed_file_is_read_back_and_the_real_one_is_kept(protected: Path, change: Callable[[], bytes]) -> None:
    expected = change()
    assert Path("ckpt.pt").read_bytes() == expected
    assert os.path.getsize("ckpt.pt") == len(expected)
    assert sorted(os.listdir()) == ["ckpt.pt", "log.txt", "runs"]


def test_torch_saves_and_loads(protected: Path) -> None:
    weights = {"w": torch.arange(3.0)}
    for target in ("ckpt.pt", Path("new.pt"), protected / "runs" / "checkpoint-1" / "model.pt"):
        torch.save(weights, target)
        assert torch.equal(torch.load(target)["w"], weights["w"])
        assert torch.equal(torch.load(target, mmap=True)["w"], weights["w"])
    with open("ckpt.pt", "wb") as file:
        torch.save(weights, file)
    buffer = io.BytesIO()
    torch.save(weights, buffer)
    assert buffer.getvalue()
    assert os.path.exists("new.pt")


def test_numpy_saves_and_loads(protected: Path) -> None:
    values = np.arange(3.0)
    np.save("a.npy", values)
    np.savez("b.npz", values=values)
    np.savetxt("c.txt", values)
    values.tofile("d.bin")
    mapped = np.memmap("e.bin", dtype="f8", mode="w+", shape=3)
    mapped[:] = values
    mapped.flush()
    for loaded in (np.load("a.npy"), np.load("b.npz")["values"], np.loadtxt("c.txt"), np.fromfile("d.bin")):
        assert (loaded == values).all()
    assert (np.fromfile("e.bin") == values).all()


def test_compressed_files(protected: Path) -> None:
    with bz2.open("ckpt.pt", "wb") as file:
        file.write(b"x")
    with bz2.open("ckpt.pt") as file:
        assert file.read() == b"x"


def test_removed_files_are_gone_for_the_script(protected: Path) -> None:
    os.remove("ckpt.pt")
    assert not os.path.exists("ckpt.pt")
    assert not Path("ckpt.pt").is_file()
    assert "ckpt.pt" not in os.listdir()
    assert [entry.name for entry in os.scandir()] != []
    with pytest.raises(FileNotFoundError):
        Path("ckpt.pt").open().close()
    with pytest.raises(FileNotFoundError):
        os.remove("ckpt.pt")
    with open("ckpt.pt", "x") as file:
        file.write("again")
    assert Path("ckpt.pt").read_text() == "again"
    Path("ckpt.pt").unlink()
    Path("ckpt.pt").unlink(missing_ok=True)
    assert not Path("ckpt.pt").exists()


def test_checkpoints_rotate(protected: Path) -> None:
    for number in (2, 3):
        os.makedirs(f"runs/checkpoint-{number}/inner")
        torch.save({}, f"runs/checkpoint-{number}/inner/model.pt")
    found = sorted(Path("runs").glob("checkpoint-*"))
    assert [path.name for path in found] == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]
    assert all(path.is_dir() for path in found)
    shutil.rmtree(found[0])
    shutil.rmtree(found[1])
    assert os.listdir("runs") == ["checkpoint-3"]
    assert [name for _, _, names in os.walk("runs") for name in names] == ["model.pt"]
    os.makedirs("runs/checkpoint-1")
    assert os.listdir("runs/checkpoint-1") == []
    os.rename("runs/checkpoint-3", "runs/best")
    assert sorted(os.listdir("runs")) == ["best", "checkpoint-1"]
    assert os.path.isfile("runs/best/inner/model.pt")
    shutil.rmtree("runs")
    assert not os.path.isdir("runs")


def test_a_real_directory_can_be_renamed(protected: Path) -> None:
    shutil.move("runs", "old")
    assert not os.path.exists("runs/checkpoint-1/model.pt")
    assert Path("old/checkpoint-1/model.pt").read_bytes() == b"one"
    os.mkdir("runs")
    assert os.listdir("runs") == []
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("old")


def test_copied_trees(protected: Path) -> None:
    shutil.copytree("runs", "copy")
    assert Path("copy/checkpoint-1/model.pt").read_bytes() == b"one"
    shutil.copytree("copy", "runs", dirs_exist_ok=True)


def test_links(protected: Path) -> None:
    torch.save({}, "runs/new.pt")
    os.symlink("new.pt", "runs/latest.pt")
    os.symlink("checkpoint-1", "runs/latest")
    assert os.path.islink("runs/latest.pt")
    assert torch.load("runs/latest.pt") == {}
    assert Path("runs/latest/model.pt").read_bytes() == b"one"
    with open("runs/latest/model.pt", "wb") as file:
        file.write(b"two")
    assert Path("runs/checkpoint-1/model.pt").read_bytes() == b"two"
    os.unlink("runs/latest")
    assert Path("runs/checkpoint-1/model.pt").exists()
    os.link("log.txt", "hard.txt")
    with open("hard.txt", "a") as file:
        file.write("more")


def test_errors_are_those_of_real_files(protected: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Path("nowhere/file.txt").touch()
    with pytest.raises(FileExistsError):
        Path("ckpt.pt").touch(exist_ok=False)
    with pytest.raises(FileExistsError):
        os.mkdir("runs")
    with pytest.raises(NotADirectoryError):
        Path("ckpt.pt/file").write_text("")
    with pytest.raises(IsADirectoryError):
        os.remove("runs")
    with pytest.raises(NotADirectoryError):
        os.rmdir("ckpt.pt")
    with pytest.raises(OSError, match="not empty"):
        os.rmdir("runs")
    with pytest.raises(TypeError):
        open(None)  # type: ignore[call-overload] # noqa: SIM115
    os.makedirs("runs", exist_ok=True)


def test_the_working_directory_may_be_one_that_only_the_script_has(protected: Path) -> None:
    os.makedirs("outputs/today")
    os.chdir("outputs/today")
    Path("here.txt").write_text("x")
    assert os.getcwd() == str(protected / "outputs" / "today")
    assert Path("../../log.txt").read_text() == "first line\n"
    assert os.listdir() == ["here.txt"]
    os.chdir("../..")
    assert os.getcwd() == str(protected)
    assert Path("outputs/today/here.txt").read_text() == "x"


def test_temporary_files_are_real(protected: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a").write_text("x")
        os.makedirs(os.path.join(folder, "b", "c"))
        assert snapshot_without_patches(folder) == ["a", "b"]
        descriptor, name = tempfile.mkstemp(dir=folder)
        os.close(descriptor)
        os.unlink(name)
    assert not os.path.exists(folder)
    with tempfile.TemporaryFile() as file:
        file.write(b"x")


def snapshot_without_patches(folder: str) -> list[str]:
    """The names really there, as another process sees them."""
    import subprocess

    return subprocess.run(["ls", folder], capture_output=True, text=True, check=True).stdout.split()


def test_devices_and_pipes_are_left_alone(protected: Path) -> None:
    with open(os.devnull, "w") as file:
        file.write("x")
    read_end, write_end = os.pipe()
    with open(write_end, "w") as file:
        file.write("x")
    with open(read_end) as file:
        assert file.read() == "x"


def test_safetensors_is_redirected_when_it_is_imported(protected: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    Path("weights").mkdir()
    safetensors.save_file({"w": torch.ones(2)}, "weights/model.safetensors")
    assert torch.equal(safetensors.load_file("weights/model.safetensors")["w"], torch.ones(2))


def test_databases(protected: Path) -> None:
    import sqlite3

    connection = sqlite3.connect("runs/study.db")
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    assert os.path.exists("runs/study.db")

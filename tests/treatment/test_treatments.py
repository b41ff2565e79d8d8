"""Interventions in this process: each does what it says, and is gone afterwards."""

from __future__ import annotations

import importlib
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leftovers
from nanprobe.interventions import (
    ClipGradients,
    DropRows,
    EditedFile,
    Intervention,
    Islands,
    MasterWeights,
    RaiseEps,
    ScaleRate,
    WarmUp,
)
from nanprobe.precision import cuda_autocast_on_cpu
from nanprobe.treatment import serve_edited_files, treat


@contextmanager
def treated(model: nn.Module, *interventions: Intervention) -> Iterator[dict[str, object]]:
    names = {id(module): name for name, module in model.named_modules()}
    before = leftovers.snapshot()
    with treat(interventions, lambda module: names.get(id(module), ""), "cpu") as seen:
        yield seen
    assert leftovers.changed(before) == []


class Half(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Half(), nn.Linear(4, 1))


def test_an_island_computes_in_fp32_under_autocast() -> None:
    model, x = small(), torch.full((2, 4), 300.0)
    with treated(model, Islands(("1",))) as seen, cuda_autocast_on_cpu(), torch.autocast("cpu", torch.float16):
        kinds: list[torch.dtype] = []
        handle = model[1].register_forward_hook(lambda m, args, out: kinds.append(out.dtype))
        assert model(x).dtype == torch.float16  # the last layer casts down again
        handle.remove()
    assert kinds == [torch.float32]
    assert seen["islands"] == {"1": ["Half", __file__, Half.forward.__code__.co_firstlineno]}
    assert "forward" not in vars(model[1])


def test_an_island_in_a_half_model_goes_on_in_half() -> None:
    model = small().half()
    weight = model[0].weight
    with treated(model, Islands(("0", "1"))):
        out = model[1](model[0](torch.ones(2, 4).half()))
        model(torch.ones(2, 4).half())
    assert out.dtype == torch.float16
    assert model[0].weight is weight and weight.dtype == torch.float16


def test_gradients_reach_the_half_weights_of_an_island() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Flatten()).half()
    with treated(model, Islands(("0",))):
        model(torch.ones(2, 4).half()).float().sum().backward()
    assert model[0].weight.grad is not None and model[0].weight.grad.dtype == torch.float16


def step(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float = 1.0) -> None:
    optimizer.zero_grad()
    (model(torch.ones(8, 4, dtype=next(model.parameters()).dtype)).float().sum() * factor).backward()
    optimizer.step()


def test_gradients_are_clipped_for_the_step() -> None:
    model = small()
    with treated(model, ClipGradients(0.5)):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        before = [p.detach().clone() for p in model.parameters()]
        step(model, optimizer, 1000.0)
        moved = torch.cat([(p - b).flatten() for p, b in zip(model.parameters(), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.5, rel=1e-3)


def test_small_gradients_are_not_clipped() -> None:
    plain, clipped = small(), small()
    step(plain, torch.optim.SGD(plain.parameters(), lr=0.1))
    with treated(clipped, ClipGradients(1e6)):
        step(clipped, torch.optim.SGD(clipped.parameters(), lr=0.1))
    for mine, theirs in zip(clipped.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize(("change", "rates"), [(ScaleRate(0.1), [0.05] * 4), (WarmUp(2), [0.25, 0.5, 0.5, 0.5])])
def test_rates_are_changed_for_the_step_only(change: Intervention, rates: list[float]) -> None:
    model, used = small(), list[float]()
    with treated(model, change):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer.register_step_pre_hook(lambda o, *_: used.append(o.param_groups[0]["lr"]))
        for _ in range(4):
            step(model, optimizer)
            assert optimizer.param_groups[0]["lr"] == 0.5
    assert used == pytest.approx(rates)


def test_eps_is_only_ever_raised() -> None:
    model = small()
    with treated(model, RaiseEps(1e-4)):
        low, high = torch.optim.Adam(model.parameters()), torch.optim.Adam(model.parameters(), eps=1e-2)
        for optimizer in (low, high):
            step(model, optimizer)
    assert (low.param_groups[0]["eps"], high.param_groups[0]["eps"]) == (1e-4, 1e-2)


def test_master_weights_keep_updates_that_half_swallows() -> None:
    plain, kept = small().bfloat16(), small().bfloat16()
    start = [p.detach().clone() for p in plain.parameters()]
    loose = torch.optim.SGD(plain.parameters(), lr=1e-5)
    with treated(kept, MasterWeights()):
        optimizer = torch.optim.SGD(kept.parameters(), lr=1e-5)
        for _ in range(200):
            step(plain, loose)
            step(kept, optimizer)
        assert all(p.dtype == torch.float32 for p in optimizer.param_groups[0]["params"])
        optimizer.zero_grad()
        assert all(p.grad is None for p in kept.parameters())
    assert torch.equal(start[2], plain[2].weight)
    assert not torch.equal(start[2], kept[2].weight)


def rows(*values: float) -> TensorDataset:
    return TensorDataset(torch.tensor(values), torch.arange(len(values)))


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_are_not_finite_leave_their_batch(workers: int) -> None:
    data = rows(0.0, float("nan"), 2.0, 3.0, float("inf"), float("nan"))
    with treated(nn.Identity(), DropRows()) as seen:
        batches = [y.tolist() for _, y in DataLoader(data, batch_size=2, num_workers=workers)]
    assert batches == [[0], [2, 3]]
    assert seen == {"dropped_samples": [1, 4, 5], "dropped_rows": 3}


def test_named_and_absurd_rows_leave_too() -> None:
    data = rows(0.0, 1.0, 1e30, 3.0)
    with treated(nn.Identity(), DropRows((3,), nonfinite=False, largest=1e20)):
        batches = [y.tolist() for _, y in DataLoader(data, batch_size=4)]
    assert batches == [[0, 1]]


def test_batches_keep_their_shape_of_containers() -> None:
    data = [{"x": torch.tensor([float(k)]), "name": str(k), "pair": (torch.tensor(k), k)} for k in range(3)]
    data[1]["x"] = torch.tensor([float("nan")])
    with treated(nn.Identity(), DropRows()):
        (batch,) = DataLoader(data, batch_size=3)  # type: ignore[arg-type]
    assert batch["x"].flatten().tolist() == [0.0, 2.0]
    assert batch["name"] == ["0", "2"]
    assert [part.tolist() for part in batch["pair"]] == [[0, 2], [0, 2]]


def test_an_edited_module_is_imported_in_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "edited_part.py"
    path.write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    import edited_part  # type: ignore[import-not-found]  # makes its cached bytecode

    assert edited_part.value == 1
    del sys.modules["edited_part"]
    with serve_edited_files([EditedFile(str(path), "value = 2\n")]):
        assert importlib.import_module("edited_part").value == 2
        assert linecache.getline(str(path), 1) == "value = 2\n"
    del sys.modules["edited_part"]
    assert importlib.import_module("edited_part").value == 1
    assert path.read_text() == "value = 1\n"
    del sys.modules["edited_part"]

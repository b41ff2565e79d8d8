"""A number that is not finite, followed back to the batch, its rows and the data set's items, however it was loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from nanprobe.diagnosis import findings_of
from nanprobe.findings import Finding
from stages import run_stage

BAD, WIDTH = 27, 3


class Items(Dataset[Tensor]):
    """Forty samples, one of them with a NaN in column 1 that is made while it is read."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Tensor:
        sample = torch.full((WIDTH,), index / 40)
        if index == BAD:
            sample[1] = math.nan
        return sample


class Ratios(Items):
    """The same, the NaN made by dividing 0 by 0."""

    def __getitem__(self, index: int) -> Tensor:
        sample = torch.full((WIDTH,), index / 40)
        sample[1] = sample[1] / torch.tensor(float(index != BAD)) if index != BAD else torch.zeros(()) / torch.zeros(())
        return sample


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return (Items()[i] for i in range(40))


def stack(samples: list[Tensor]) -> Tensor:
    return torch.stack(samples)


def cat(samples: list[Tensor]) -> Tensor:
    return torch.cat([s[None] for s in samples])


def fill(samples: list[Tensor]) -> Tensor:
    out = torch.zeros(len(samples), WIDTH)
    for row, sample in enumerate(samples):
        out[row] = sample
    return out


def without_one(samples: list[Tensor]) -> Tensor:
    return torch.stack([s for s in samples if not (s == 25 / 40).all()])


def found(batches: Callable[[], Iterable[Any]]) -> Finding:
    """What is found in the step that reads the NaN, looked at closely like every other."""

    def loop() -> None:
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        for batch in batches():
            optimizer.zero_grad()
            model(batch[0] if isinstance(batch, list) else batch).mean().backward()
            optimizer.step()

    return findings_of(run_stage(loop, steps=10, deep=tuple(range(10))))[0]


def whole() -> Tensor:
    return torch.stack([Items()[i] for i in range(40)])


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "default": lambda: DataLoader(Items(), 8),
    "stack": lambda: DataLoader(Items(), 8, collate_fn=stack),
    "shuffled stack": lambda: DataLoader(Items(), 8, shuffle=True, collate_fn=stack),
    "cat": lambda: DataLoader(Items(), 8, collate_fn=cat),
    "fill": lambda: DataLoader(Items(), 8, collate_fn=fill),
    "weighted, workers": lambda: DataLoader(Items(), 8, sampler=WeightedRandomSampler([1.0] * 40, 80), num_workers=2),
    "tensors": lambda: DataLoader(TensorDataset(whole()), 8, shuffle=True),
    "stream": lambda: DataLoader(Stream(), 8),
    "stream, one worker": lambda: DataLoader(Stream(), 8, num_workers=1, collate_fn=stack),
}


@pytest.mark.parametrize("name", LOADERS)
def test_the_item_of_the_data_set(name: str) -> None:
    finding = found(LOADERS[name])
    assert finding.code == "NP301" and finding.batch is not None
    assert (finding.batch.dataset_indices, finding.batch.columns) == ((BAD,), (1,))
    assert finding.batch.index is not None and len(finding.batch.rows) == 1
    assert f"dataset item {BAD}" in finding.remedies[0].text


def test_samples_left_out_leave_the_items_unknown() -> None:
    place = found(lambda: DataLoader(Items(), 8, collate_fn=without_one)).batch
    assert place is not None and (place.index, place.rows, place.dataset_indices) == (3, (2,), ())


def test_a_fault_of_the_data_sets_own_has_its_item_too() -> None:
    finding = found(lambda: DataLoader(Ratios(), 8, collate_fn=stack))
    assert (finding.code, finding.batch and finding.batch.dataset_indices) == ("NP404", (BAD,))
    assert finding.source is not None and "torch.zeros(()) / torch.zeros(())" in finding.source.code


def test_a_batch_that_the_script_makes_itself_has_rows() -> None:
    def batches() -> Iterator[Tensor]:
        for start in range(0, 40, 8):
            yield torch.stack([Items()[i] for i in range(start, start + 8)])

    place = found(batches).batch
    assert place is not None and (place.rows, place.columns) == ((BAD % 8,), (1,))


def test_the_backward_pass_of_an_accumulation() -> None:
    def loop() -> None:
        w = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([w], lr=0.1)
        for micro_batch in (1.0, 0.0, 1.0):
            (w * micro_batch).sqrt().sum().backward()
        optimizer.step()

    assert findings_of(run_stage(loop, deep=(0,)))[0].evidence["backward_pass"] == "2 of 3"

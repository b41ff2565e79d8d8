"""What a record says of an operation: module, line, phase, writers, and what its inputs were."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from nanprobe.records import BatchRecord, ExternalKind, OpRecord, Phase
from probe import losses
from probe.sessions import Watched, watch


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        return h.sigmoid() * x[0].expand(2, 3)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.exp()


def one_step(net: nn.Module, loss_of: Any = losses.scaled_square, **kwargs: Any) -> Watched:
    def loop() -> None:
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        opt.zero_grad()
        loss_of(net(torch.randn(2, 3))).backward()
        opt.step()

    return watch(loop, deep=(0,), **kwargs)


def only(ops: list[OpRecord]) -> OpRecord:
    assert len(ops) == 1
    return ops[0]


def line(op: OpRecord) -> str:
    assert op.source is not None
    return op.source.code


def test_module_line_and_phase_forward_and_backward() -> None:
    watched = one_step(Outer())
    first, second = watched.ops("sigmoid")
    assert (first.module, second.module) == ("layers.0", "layers.1")
    assert (first.phase, first.node) == (Phase.FORWARD, None)
    assert line(first) == "return h.sigmoid() * x[0].expand(2, 3)"
    assert {op.module for op in watched.ops("addmm")} == {"layers.0.lin", "layers.1.lin"}
    back = watched.ops("sigmoid_backward")
    assert [op.module for op in back] == ["layers.1", "layers.0"]
    assert [op.forward_index for op in back] == [second.index, first.index]
    assert {(op.phase, op.node, line(op)) for op in back} == {(Phase.BACKWARD, "SigmoidBackward0", line(first))}
    update = watched.ops("_foreach_add_") or watched.ops("add_")
    assert {op.phase for op in update} == {Phase.UPDATE}
    assert {line(op) for op in update} == {"opt.step()"}


def test_the_gradient_of_a_view_leads_to_the_view() -> None:
    watched = one_step(Outer())
    sums = [op for op in watched.ops("sum") if op.node == "ExpandBackward0"]
    assert sums
    assert {line(op) for op in sums} == {"return h.sigmoid() * x[0].expand(2, 3)"}
    assert {op.module for op in sums} <= {"layers.0", "layers.1"}


def test_a_function_of_another_file() -> None:
    watched = one_step(Outer())
    forward = only([op for op in watched.ops("pow") if op.phase is Phase.FORWARD])
    assert forward.source is not None
    assert forward.source.file.endswith("losses.py")
    assert forward.source.function == "scaled_square"
    assert forward.module is None
    back = [op for op in watched.deep[0].ops if op.node == "PowBackward0"]
    assert back
    assert {op.source for op in back} == {forward.source}


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks(reentrant: bool) -> None:
    class Saved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Inner()
            self.plain = nn.Sequential(nn.Linear(3, 3), nn.Softplus())

        def forward(self, x: Tensor) -> Tensor:
            x = checkpoint(self.body, x.requires_grad_(), use_reentrant=reentrant)
            return checkpoint(self.plain, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    watched = one_step(Saved())
    once, again = watched.ops("sigmoid")
    assert once.module == again.module == "body"
    assert once.phase == again.phase == Phase.FORWARD
    assert again.node is None
    assert line(again) == "return h.sigmoid() * x[0].expand(2, 3)"
    back = only(watched.ops("sigmoid_backward"))
    assert (back.phase, back.module, line(back)) == (Phase.BACKWARD, "body", line(once))
    # A block without a line of the user's own is known by its modules.
    soft = watched.ops("softplus")
    assert {op.phase for op in soft} == {Phase.FORWARD}
    again = [op for op in watched.ops("addmm") if op.module == "plain.0"]
    assert [(op.phase, op.node) for op in again] == [(Phase.FORWARD, None)] * 2
    assert {op.module for op in soft} == {"plain.1"}
    assert only(watched.ops("softplus_backward")).module == "plain.1"


def test_custom_functions() -> None:
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.abs().sqrt()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return grad * 0.5 / x.abs().sqrt()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Root.apply(self.lin(x))  # type: ignore[no-any-return]

    watched = one_step(Net())
    forward, backward = watched.ops("sqrt")
    assert (forward.phase, line(forward), forward.module) == (Phase.FORWARD, "return x.abs().sqrt()", "Net")
    assert (backward.phase, line(backward)) == (Phase.BACKWARD, "return grad * 0.5 / x.abs().sqrt()")
    assert backward.node == "RootBackward"


def test_double_backward() -> None:
    def penalty(out: Tensor) -> Tensor:
        return out.pow(2).mean()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> Tensor:
            x = x.requires_grad_()
            y = (x * self.w).tanh()
            return torch.autograd.grad(y.sum(), x, create_graph=True)[0]

    watched = one_step(Net(), penalty)
    tanh = only(watched.ops("tanh"))
    derived = watched.ops("tanh_backward")
    assert derived
    assert derived[0].forward_index == tanh.index
    assert line(derived[0]) == "y = (x * self.w).tanh()"
    twice = [op for op in watched.deep[0].ops if op.node == "TanhBackwardBackward0"]
    assert twice
    assert {line(op) for op in twice} == {"y = (x * self.w).tanh()"}


def test_parameters_buffers_and_optimizer_state_are_named() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("shift", torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(x) + self.shift

    net = Net()

    def loop() -> None:
        opt = torch.optim.Adam(net.parameters(), lr=0.1)
        for _ in range(2):
            opt.zero_grad()
            net(torch.randn(2, 3)).sum().backward()
            opt.step()

    found = {(e.kind, e.name) for e in watch(loop, deep=(1,)).deep[0].externals}
    assert {(ExternalKind.PARAMETER, "lin.weight"), (ExternalKind.BUFFER, "shift")} <= found
    assert {n for k, n in found if k is ExternalKind.OPTIMIZER_STATE} >= {"exp_avg", "exp_avg_sq"}


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        x = torch.full((3,), float(index))
        if index == 7:
            x[1] = float("nan")
        return {"x": x, "y": torch.tensor(int(index))}


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        for i in range(6):
            yield torch.full((3,), float("nan") if i == 3 else 1.0)


def read(loader: DataLoader[Any], epochs: int = 1, stop: int = 100) -> Watched:
    def loop() -> None:
        w = nn.Parameter(torch.ones(3))
        opt = torch.optim.SGD([w], lr=0.0)
        for _ in range(epochs):
            for i, batch in enumerate(loader):
                x = batch["x"] if isinstance(batch, dict) else batch[0] if isinstance(batch, list) else batch
                ((x * 2) * w).nan_to_num().sum().backward()
                opt.step()
                if i + 1 == stop:
                    break

    return watch(loop, deep=(0, 1, 2, 3))


class Backwards(torch.utils.data.Sampler[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(torch.arange(11, -1, -1))  # indices as tensors, as torch.randperm gives them

    def __len__(self) -> int:
        return 12


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["plain", "sampler", "batch_sampler", "shuffle"])
def test_rows_of_a_batch_lead_to_the_data_set(workers: int, how: str) -> None:
    kwargs: dict[str, Any] = {"batch_size": 4}
    if how == "sampler":
        kwargs["sampler"] = Backwards()
    elif how == "batch_sampler":
        kwargs = {"batch_sampler": [(0, 1), (7, 2), (3,)]}
    elif how == "shuffle":
        kwargs["shuffle"] = True
    watched = read(DataLoader(Rows(), num_workers=workers, **kwargs))
    batches = [b for b in watched.of(BatchRecord) if any(f.stats.nan_count for f in b.fields)]
    assert len(batches) == 1
    assert 7 in batches[0].dataset_indices
    field = batches[0].fields[0]
    assert (field.name, field.columns) == ("x", (1,))
    assert field.dataset_indices[field.rows[0]] == 7
    if workers:  # without workers, the operations of the data set are recorded themselves
        bad = [e for d in watched.deep for e in d.externals if e.stats.nan_count]
        assert [(e.kind, e.name, e.rows, e.columns) for e in bad] == [(ExternalKind.BATCH, "x", field.rows, (1,))]
        assert (bad[0].batch_index, bad[0].dataset_indices) == (batches[0].index, batches[0].dataset_indices)
    else:
        made = [op for op in watched.ops("stack") if op.outputs[0].nan_count]
        assert [(op.phase, op.rows) for op in made] == [(Phase.DATA, field.rows)]


def test_a_loader_left_early_and_used_again() -> None:
    loader = DataLoader(Rows(), batch_size=4, num_workers=1, persistent_workers=True)
    watched = read(loader, epochs=2, stop=1)
    assert [b.dataset_indices for b in watched.of(BatchRecord)] == [(0, 1, 2, 3)] * 2
    del loader


def test_a_sample_that_cannot_be_read_shifts_nothing() -> None:
    class Broken(Rows):
        def __getitem__(self, index: int) -> dict[str, Tensor]:
            if index == 1:
                raise OSError
            return super().__getitem__(index)

    def loop() -> None:
        batches = iter(DataLoader(Broken(), batch_size=4))
        for _ in range(3):
            try:
                next(batches)
            except OSError:
                continue

    watched = watch(loop)
    assert [b.dataset_indices for b in watched.of(BatchRecord)] == [(4, 5, 6, 7), (8, 9, 10, 11)]


@pytest.mark.parametrize(("workers", "indices"), [(0, (2, 3)), (1, (2, 3)), (2, ())])
def test_items_of_a_stream_are_counted_where_one_process_reads_it(workers: int, indices: tuple[int, ...]) -> None:
    watched = read(DataLoader(Stream(), batch_size=2, num_workers=workers))
    bad = [f for b in watched.of(BatchRecord) for f in b.fields if f.stats.nan_count]
    assert {(f.rows, f.dataset_indices) for f in bad} == {((1,), indices)}


def test_looking_at_a_batch_is_no_operation_of_the_step() -> None:
    watched = read(DataLoader(TensorDataset(torch.ones(8, 3)), batch_size=2))
    names = {op.op for d in watched.deep for op in d.ops}
    assert not {n for n in names if "minmax" in n or "isnan" in n or "isfinite" in n or "_foreach_norm" in n}


def test_measuring_is_no_operation_of_the_step() -> None:
    def loop() -> None:
        net = nn.Linear(3, 3)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            net(torch.ones(1, 3)).sum().backward()
            opt.step()

    names = {op.op for d in watch(loop, deep=(0, 1, 2)).deep for op in d.ops}
    assert not {n for n in names if "minmax" in n or "maximum" in n}


def test_rows_columns_and_specimens_of_a_bad_result() -> None:
    def loop() -> None:
        w = nn.Parameter(torch.tensor([1.0, 0.0, 4.0]))
        opt = torch.optim.SGD([w], lr=0.0)
        x = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
        (x / w).sum().backward()
        opt.step()

    div = next(op for op in watch(loop, deep=(0,)).ops("div") if op.phase is not Phase.BACKWARD)
    assert (div.outputs[0].nan_count, div.outputs[0].inf_count, div.outputs[0].abs_max) == (1, 1, 1.0)
    assert (div.rows, div.columns) == ((0, 1), (1,))
    first, second = div.specimens
    assert (first.position, first.real, first.inputs) == ((0, 1), math.inf, ((2.0, 2.0), (0.0, 0.0)))
    assert second.position == (1, 1) and math.isnan(second.real)
    assert [i.zero_count for i in div.inputs] == [3, 1]


def test_a_constant_written_on_purpose() -> None:
    def loop() -> None:
        w = nn.Parameter(torch.ones(2, 2))
        opt = torch.optim.SGD([w], lr=0.0)
        mask = torch.full((2, 2), -math.inf).triu(1)
        (w + mask).softmax(1).sum().backward()
        opt.step()

    watched = watch(loop, deep=(0,))
    assert only(watched.ops("full")).deliberate
    assert not only(watched.ops("_softmax")).outputs[0].nan_count

"""Names of parameters and modules, from whatever the script calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanprobe.probe.names import ModelNames, clean
from nanprobe.records import ExternalKind, ParameterInfo
from probe.sessions import Watched, watch


def parameters(watched: Watched) -> dict[str, ParameterInfo]:
    return {p.name: p for r in watched.of(tuple) for p in r if isinstance(p, ParameterInfo)}


def step(parameters: Any, forward: Any, optimizer: Any = torch.optim.SGD) -> None:
    opt = optimizer(list(parameters), lr=0.1)
    for _ in range(2):
        opt.zero_grad()
        forward().sum().backward()
        opt.step()


def test_a_single_root_is_named_as_its_state_dict() -> None:
    def loop() -> list[str]:
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1)))
        step(net.parameters(), lambda: nn.MSELoss()(net(torch.ones(1, 2)), torch.zeros(1, 1)))
        return [k for k, _ in net.named_parameters()]

    watched = watch(loop, deep=(0,))
    found = parameters(watched)
    assert list(found) == watched.result
    assert found["1.0.weight"].module == "1.0"
    assert found["1.0.weight"].optimizer == "SGD"
    assert {op.module for op in watched.ops("mse_loss")} == {"MSELoss"}


def test_several_roots_have_their_variables_in_front() -> None:
    def loop() -> None:
        encoder, head = nn.Linear(2, 2), nn.Linear(2, 1)
        step([*encoder.parameters(), *head.parameters()], lambda: head(encoder(torch.ones(1, 2))))

    assert list(parameters(watch(loop))) == ["encoder.weight", "encoder.bias", "head.weight", "head.bias"]


def test_wrappers_are_left_out() -> None:
    assert clean("module.layers.0._orig_mod.weight") == "layers.0.weight"
    assert clean("_orig_mod.module.weight") == "weight"
    assert clean("submodule.weight") == "submodule.weight"
    assert clean("module") == ""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: Tensor) -> Tensor:
            return self.module(x)  # type: ignore[no-any-return]

    def loop() -> None:
        net = Wrapper(nn.Sequential(nn.Linear(2, 2)))
        step(net.parameters(), lambda: net(torch.ones(1, 2)))

    assert list(parameters(watch(loop))) == ["0.weight", "0.bias"]


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(3, 2)
            self.head = nn.Linear(2, 3, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x))  # type: ignore[no-any-return]

    def loop() -> None:
        net = Tied()
        step(net.parameters(), lambda: net(torch.tensor([0, 2])))

    assert list(parameters(watch(loop))) == ["embed.weight"]


def test_master_copies_carry_the_name_of_what_they_mirror() -> None:
    def loop() -> None:
        net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)).half()
        masters = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
        opt = torch.optim.SGD(masters, lr=0.1)
        for _ in range(2):
            net(torch.ones(1, 2, dtype=torch.half)).sum().backward()
            for m, p in zip(masters, net.parameters(), strict=True):
                assert p.grad is not None
                m.grad, p.grad = p.grad.float(), None
            opt.step()
            for m, p in zip(masters, net.parameters(), strict=True):
                p.data.copy_(m)

    watched = watch(loop)
    found = parameters(watched)
    assert found["1.bias@master"].master_of == "1.bias"
    assert found["1.bias@master"].module == "1"
    assert found["1.bias@master"].optimizer == "SGD"
    assert found["1.bias"].optimizer is None
    assert watched.facts["masters"] is True
    assert watched.facts["low_weights"] == "float16"


def test_bare_parameters_are_named_after_their_variables() -> None:
    def loop() -> None:
        scale, shift = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2))
        step([scale, shift], lambda: torch.ones(2) * scale + shift)

    # the variables are two frames above the optimizer's
    assert list(parameters(watch(loop))) == ["scale", "shift"]


def test_a_framework_that_calls_a_submodule_through_a_method() -> None:
    class Lit(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(2, 1)

        def training_step(self, x: Tensor) -> Tensor:
            return F.mse_loss(self.net(x), torch.zeros(1, 1))

    def loop() -> None:
        lit = Lit()
        step(lit.parameters(), lambda: lit.training_step(torch.ones(1, 2)))

    watched = watch(loop, deep=(0,))
    assert list(parameters(watched)) == ["net.weight", "net.bias"]
    assert {op.module for op in watched.ops("addmm")} == {"net"}


def test_a_criterion_made_anew_in_every_step_is_forgotten() -> None:
    names = ModelNames()
    net = nn.Linear(2, 2)
    names.add_root(net, None)
    for _ in range(20):
        criterion = nn.MSELoss()
        if not names.is_known(criterion):
            names.add_root(criterion, None)
        assert names.is_known(criterion)
        assert names.module_name(criterion) == "MSELoss"
    assert names.roots == [net]


def test_looking_for_names_keeps_nothing_alive() -> None:
    import gc
    import sys
    import weakref

    class Big:
        pass

    def loop() -> Any:
        big = Big()
        kept = weakref.ref(big)
        net = nn.Linear(2, 1)
        names = ModelNames()
        names.add_root(net, sys._getframe())
        del big
        gc.collect()
        return kept()

    assert loop() is None


def test_a_bare_parameter_is_one_from_the_first_step() -> None:
    def loop() -> None:
        scale, others = nn.Parameter(torch.ones(3)), {"shift": nn.Parameter(torch.zeros(3))}
        opt = torch.optim.SGD([scale, others["shift"]], lr=0.1)
        for _ in range(2):
            opt.zero_grad()
            (scale * torch.ones(3) + others["shift"]).sum().backward()
            opt.step()

    watched = watch(loop, deep=(0, 1))
    for deep in watched.deep:
        named = {(e.kind, e.name) for e in deep.externals if e.kind is ExternalKind.PARAMETER}
        assert named == {(ExternalKind.PARAMETER, "scale"), (ExternalKind.PARAMETER, "others.shift")}
    assert list(parameters(watched)) == ["scale", "others.shift"]


def test_parameters_of_a_model_keep_their_names_when_the_optimizer_comes_first() -> None:
    def loop() -> None:
        net = nn.Sequential(nn.Linear(2, 2))
        step(net.parameters(), lambda: net(torch.ones(1, 2)))

    watched = watch(loop, deep=(0,))
    assert list(parameters(watched)) == ["0.weight", "0.bias"]
    assert {e.name for d in watched.deep for e in d.externals if e.kind is ExternalKind.PARAMETER} == {
        "0.weight",
        "0.bias",
    }

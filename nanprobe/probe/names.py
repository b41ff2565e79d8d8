"""Names for modules, parameters and buffers, taken from the modules the user's code calls.

A root module is one called from outside any module. With one root that has parameters, names are as in its
`state_dict`; with several (a GAN, an encoder and a head) each is prefixed with the variable that holds it.
"""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from nanprobe.records import ExternalKind, ParameterInfo

_WRAPPERS = re.compile(r"(^|\.)(?:module|_orig_mod|_fsdp_wrapped_module|_forward_module)(?=\.|$)")
_MAX_FRAMES = 12
_LOOK_AGAIN = 64
_MAX_HELD = 256  # looked at in one container: a bare parameter in a longer one is numbered instead


@dataclass(slots=True)
class Watched:
    """A parameter whose gradient is watched."""

    tensor: Tensor
    name: str
    module: str | None
    optimizer: str | None = None
    master_of: str | None = None


@dataclass(slots=True)
class _Root:
    label: str
    module: nn.Module
    has_parameters: bool
    prefixed: bool = False

    def path(self, name: str) -> str:
        if not self.prefixed:
            return clean(name)
        return clean(f"{self.label}.{name}" if name else self.label)


class ModelNames:
    """Everything that has a name; parameters keep the order in which they were met."""

    def __init__(self) -> None:
        self._roots: list[_Root] = []
        self._module_names: dict[int, str] = {}
        self._plain: dict[int, weakref.ref[nn.Module]] = {}  # called on their own, with nothing in them to name
        self._optimizers: list[tuple[str, torch.optim.Optimizer]] = []
        self._expected: list[tuple[weakref.ref[Tensor], str]] = []  # given to an optimizer that has not stepped yet
        self.watched: list[Watched] = []
        self._known: dict[int, Watched] = {}
        self._seen: tuple[int, ...] = ()  # sizes of what `refresh` last looked at
        self._calls = 0

    @property
    def roots(self) -> list[nn.Module]:
        """The root modules, in the order they were first called."""
        return [root.module for root in self._roots]

    def is_known(self, module: nn.Module) -> bool:
        """Whether the module was seen already, by itself or in a root."""
        if id(module) in self._module_names:
            return True
        plain = self._plain.get(id(module))
        return plain is not None and plain() is module

    def add_root(self, module: nn.Module, frame: FrameType | None) -> None:
        """Registers a module called from outside any module; `frame` is the caller's, where its variable is sought."""
        module, label = _outermost(module, frame)
        if any(root.module is module for root in self._roots):
            return
        if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
            self._forget_dead()
            for part in module.modules():
                self._plain[id(part)] = weakref.ref(part)
            return
        taken = {root.label for root in self._roots}
        if label in taken:
            label = f"{label}{sum(name.startswith(label) for name in taken) + 1}"
        self._roots.append(_Root(label, module, next(module.parameters(), None) is not None))
        several = sum(root.has_parameters for root in self._roots) > 1
        if self.watched:
            self._roots[-1].prefixed = several  # names already given stay as they are
        else:
            for root in self._roots:
                root.prefixed = several
        self._module_names.clear()
        for root in self._roots:
            self._name_modules(root)

    def add_optimizer(self, optimizer: torch.optim.Optimizer, label: str) -> None:
        """Registers an optimizer, whose parameters are watched as well."""
        if all(known is not optimizer for _, known in self._optimizers):
            self._optimizers.append((label, optimizer))

    def expect(self, optimizer: torch.optim.Optimizer, frame: FrameType | None) -> None:
        """Notes what a new optimizer was given, by the variables that hold it: a model called later has better names.

        Until it steps these are parameters all the same, and no data.
        """
        given = [p for g in optimizer.param_groups for p in g["params"] if id(p) not in self._known]
        held = _held_names(frame) if given else {}
        self._expected += [(weakref.ref(p), held.get(id(p), f"param_{k}")) for k, p in enumerate(given)]

    def module_name(self, module: nn.Module) -> str:
        """The module's path; its class when it belongs to no root."""
        name = self._module_names.get(id(module))
        return type(module).__name__ if name is None else name

    def name_of(self, parameter: Tensor) -> str | None:
        """The parameter's name, once it is watched."""
        watched = self._known.get(id(parameter))
        return watched.name if watched is not None and watched.tensor is parameter else None

    def refresh(self, frame: FrameType | None = None) -> list[Watched]:
        """Adds parameters met since the last call; returns those that are new, or have an optimizer only now."""
        sizes = (len(self._roots), *(len(g["params"]) for _, o in self._optimizers for g in o.param_groups))
        self._calls += 1
        # Walking a model of a thousand parameters in every step would cost more than watching it: look again when
        # something came that could bring parameters, and now and then for a layer that a model makes as it goes.
        if sizes == self._seen and self._calls % _LOOK_AGAIN:
            return []
        self._seen = sizes
        before = len(self.watched)
        claimed: list[Watched] = []
        for root in self._roots:
            for name, parameter in root.module.named_parameters():
                self._watch(parameter, root.path(name))
        owned = [(label, p) for label, o in self._optimizers for g in o.param_groups for p in g["params"]]
        self._link_masters([p for _, p in owned if id(p) not in self._known])
        for position, (label, parameter) in enumerate(owned):
            if id(parameter) not in self._known:
                self._watch(
                    parameter, self._expected_name(parameter) or _variable_name(parameter, frame) or f"param_{position}"
                )
            known = self._known[id(parameter)]
            if known.optimizer is None:
                claimed.append(known)
            known.optimizer = label
        new = self.watched[before:]
        return new + [w for w in claimed if all(w is not n for n in new)] if claimed else new

    def add_leaves(self, tensors: Any, frame: FrameType | None) -> list[Watched]:
        """Watches the leaves that backward from `tensors` will reach, for a script that has no module or optimizer.

        A hand-written update often makes a new tensor of the same name; it takes the old one's place.
        """
        if self._optimizers or any(root.has_parameters for root in self._roots):
            return []
        fresh = [leaf for leaf in _leaves(tensors) if id(leaf) not in self._known]
        expected = {id(p) for p in (ref() for ref, _ in self._expected) if p is not None}
        if expected:  # an input that asks for a gradient is no parameter
            fresh = [leaf for leaf in fresh if id(leaf) in expected]
        by_name = {w.name: w for w in self.watched}
        new = []
        for leaf in fresh:
            name = self._expected_name(leaf) or _variable_name(leaf, frame) or f"leaf_{len(self.watched)}"
            if name in by_name:
                old = by_name[name]
                self._known.pop(id(old.tensor), None)
                old.tensor = leaf
                self._known[id(leaf)] = old
            else:
                self._watch(leaf, name)
                new.append(self.watched[-1])
        return new

    def infos(self, watched: Iterable[Watched]) -> tuple[ParameterInfo, ...]:
        """Records of the parameters."""
        return tuple(
            ParameterInfo(
                w.name,
                w.module,
                tuple(w.tensor.shape),
                str(w.tensor.dtype).removeprefix("torch."),
                bool(w.tensor.requires_grad),
                w.optimizer,
                w.master_of,
            )
            for w in watched
        )

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Float buffers of the roots, by name."""
        for root in self._roots:
            for name, buffer in root.module.named_buffers():
                if buffer.is_floating_point():
                    yield root.path(name), buffer

    def storages(self) -> dict[int, tuple[ExternalKind, str]]:
        """What each named storage is, for tensors met in a deep step."""
        found: dict[int, tuple[ExternalKind, str]] = {}
        for expected, name in self._expected:
            parameter = expected()
            if parameter is not None:
                _note(found, parameter, ExternalKind.PARAMETER, name)
        for _, optimizer in self._optimizers:
            for state in optimizer.state.values():
                for key, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, Tensor):
                        _note(found, value, ExternalKind.OPTIMIZER_STATE, str(key))
        for name, buffer in self.buffers():
            _note(found, buffer, ExternalKind.BUFFER, name)
        for root in self._roots:
            for name, parameter in root.module.named_parameters():
                _note(found, parameter, ExternalKind.PARAMETER, root.path(name))
        for w in self.watched:
            _note(found, w.tensor, ExternalKind.PARAMETER, w.name)
        return found

    def owner_of_gradient(self, tensor: Tensor) -> str | None:
        """The parameter whose `.grad` the tensor is, or is a view of; None for any other tensor."""
        storage = tensor.untyped_storage()._cdata
        for w in self.watched:
            grad = w.tensor.grad
            if grad is None or grad.layout != torch.strided or grad.numel() != tensor.numel():
                continue
            if grad.untyped_storage()._cdata == storage:
                return w.name
        return None

    def _watch(self, parameter: Tensor, name: str, master_of: str | None = None) -> None:
        if id(parameter) in self._known:
            return
        module = name.rpartition(".")[0] or None
        self._known[id(parameter)] = Watched(parameter, name, module, None, master_of)
        self.watched.append(self._known[id(parameter)])

    def _expected_name(self, parameter: Tensor) -> str | None:
        found = next((name for expected, name in self._expected if expected() is parameter), None)
        return None if found is None or re.fullmatch(r"param_\d+", found) else found

    def _link_masters(self, strangers: list[Tensor]) -> None:
        """Names FP32 master copies after the parameters they mirror: same shapes in the same order."""
        models = [w for w in self.watched if w.master_of is None]
        for candidates in ([w for w in models if w.tensor.requires_grad], models):
            if strangers and [w.tensor.shape for w in candidates] == [p.shape for p in strangers]:
                for w, p in zip(candidates, strangers, strict=True):
                    self._watch(p, f"{w.name}@master", w.name)
                    self.watched[-1].module = w.module
                return

    def _forget_dead(self) -> None:
        if len(self._plain) % 64 == 63:  # a criterion made anew in every step
            self._plain = {key: ref for key, ref in self._plain.items() if ref() is not None}

    def _name_modules(self, root: _Root) -> None:
        for name, module in root.module.named_modules():
            # A criterion has no parameters and no place in the state_dict: its class says most.
            path = root.path(name) if root.has_parameters else clean(name)
            self._module_names.setdefault(id(module), path or type(module).__name__)


def _leaves(tensors: Any) -> list[Tensor]:
    """The leaf tensors that gradients flow into from these."""
    roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    stack: list[Any] = [t.grad_fn for t in roots if isinstance(t, Tensor)]
    seen: set[Any] = set()
    leaves: list[Tensor] = []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            leaves.append(variable)
        stack.extend(following for following, _ in node.next_functions)
    return leaves[::-1]


def clean(name: str) -> str:
    """The name without the prefixes that DDP, FSDP and torch.compile put in."""
    return _WRAPPERS.sub("", name).lstrip(".")


def _note(found: dict[int, tuple[ExternalKind, str]], tensor: Tensor, kind: ExternalKind, name: str) -> None:
    if tensor.layout == torch.strided and type(tensor) in (Tensor, nn.Parameter):
        found[tensor.untyped_storage()._cdata] = (kind, name)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _locals(frame: FrameType) -> dict[str, Any]:
    """The frame's variables. Before Python 3.13 a function's frame keeps the dictionary it gives, and so would keep
    the tensors of the first step alive to the end: it is emptied.
    """
    variables = frame.f_locals
    copy = dict(variables)
    if sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()
    return copy


def _outermost(module: nn.Module, frame: FrameType | None) -> tuple[nn.Module, str]:
    """The module that contains `module` and is at hand where it was called, with its variable's name.

    A `training_step` called by a framework calls `self.net(x)`: the root is then `self`, not `net`.
    """
    best: nn.Module = module
    for f in _frames(frame):
        for value in _locals(f).values():
            if isinstance(value, nn.Module) and value is not best and _contains(value, best):
                best = value
    return best, _variable_name(best, frame) or type(best).__name__


def _contains(outer: nn.Module, inner: nn.Module) -> bool:
    try:
        return any(m is inner for m in outer.modules())
    except Exception:  # a user's module may be half built
        return False


def _held_names(frame: FrameType | None) -> dict[int, str]:
    """Names of the tensors that variables hold, also in objects, else in a list or dict; innermost frame first."""
    direct: dict[int, str] = {}
    in_containers: dict[int, str] = {}
    for f in _frames(frame):
        for name, held in [*_locals(f).items(), *f.f_globals.items()]:
            names = in_containers if isinstance(held, (dict, list, tuple)) else direct
            for path, value in _inside(name, held):
                if isinstance(value, Tensor) and value.is_leaf:
                    names.setdefault(id(value), path)
    return {**in_containers, **direct}


def _inside(name: str, held: Any) -> Iterator[tuple[str, Any]]:
    """A variable, or what a container or plain object in it holds."""
    if isinstance(held, Tensor):
        yield name, held
    elif isinstance(held, dict):
        yield from ((f"{name}.{key}", value) for key, value in list(held.items())[:_MAX_HELD])
    elif isinstance(held, (list, tuple)):
        yield from ((f"{name}.{position}", value) for position, value in enumerate(held[:_MAX_HELD]))
    elif not isinstance(held, (type, ModuleType, nn.Module)):
        attributes = getattr(held, "__dict__", None) or {}
        yield from ((str(key), value) for key, value in list(attributes.items())[:_MAX_HELD])


def _variable_name(value: Any, frame: FrameType | None) -> str | None:
    """The name of a variable or attribute that holds `value`, innermost frame first."""
    for f in _frames(frame):
        variables = _locals(f)
        for name, held in [*variables.items(), *f.f_globals.items()]:
            if held is value and name != "self":
                return name
        for held in variables.values():
            for name, attribute in (getattr(held, "__dict__", None) or {}).items():
                if attribute is value:
                    return str(name)
    return None

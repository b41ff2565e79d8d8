"""The smallest set of modules that must compute in FP32, found by trying sets of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanprobe.findings import Finding
from nanprobe.records import StageTrace

LARGEST = 4  # an island of more modules is no small change, and its search costs many runs: our choice
Predicate = Callable[[tuple[str, ...]], bool]  # whether the run is sound with these modules in FP32


def smallest_island(modules: Sequence[str], is_sound: Predicate, largest: int = LARGEST) -> tuple[str, ...] | None:
    """A set of modules that is sound and of which none can be left out; None when there is none up to `largest`.

    `modules` come most suspicious first; `is_sound` is taken to stay true when more modules are added. Each member is
    found by doubling from the front and then halving, so that k members of n modules take at most k (2 log2 n + 2) + 1
    runs, and a member at the front takes one. Source: the search for the last necessary element in delta debugging,
    Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002; QuickXplain, Junker, 2004.
    """
    chosen: tuple[str, ...] = ()
    rest = list(modules)
    while len(chosen) < largest:
        length = _shortest_prefix(rest, chosen, is_sound)
        if length is None:
            return None
        chosen += (rest[length - 1],)
        rest = rest[: length - 1]
        if length == 1 or is_sound(chosen):  # with nothing left before it, the last try was this very set
            return chosen
    return None


def _shortest_prefix(rest: Sequence[str], chosen: tuple[str, ...], is_sound: Predicate) -> int | None:
    """How many of the front of `rest` are needed beside `chosen`; None when not even all are enough."""
    low, high = 0, 1  # too few, and what is tried
    while not (high <= len(rest) and is_sound((*chosen, *rest[:high]))):
        if high >= len(rest):
            return None
        low, high = high, min(2 * high, len(rest))
    while high - low > 1:
        middle = (low + high) // 2
        if is_sound((*chosen, *rest[:middle])):
            high = middle
        else:
            low = middle
    return high


def suspects(trace: StageTrace, finding: Finding) -> list[str]:
    """The modules of the failing stage, the finding's own first, then those nearest to it in the tree.

    Containers that compute nothing themselves are left out: their parts are asked one by one. So are whole models: all
    in FP32 is what the fp32 stage shows.
    """
    named = [p.module for p in trace.parameters] + [op.module for deep in trace.deep_steps for op in deep.ops]
    named += [finding.module] + [p.rpartition(".")[0] for p in finding.parameters]
    models = trace.facts.get("models")
    whole = set(models) if isinstance(models, (list, tuple)) else set()
    paths = list(dict.fromkeys(m for m in named if m and m not in whole))
    leaves = [m for m in paths if not any(o.startswith(f"{m}.") for o in paths)]
    own = {id(op): op.module for deep in trace.deep_steps for op in deep.ops}
    computing = set(own.values())
    inner = [m for m in paths if m in computing and m not in leaves]  # a forward that computes by itself
    first = [
        m for m in dict.fromkeys([finding.module, *(p.rpartition(".")[0] for p in finding.parameters)]) if m in paths
    ]
    order = {m: k for k, m in enumerate(paths)}
    rest = sorted({*leaves, *inner} - set(first), key=lambda m: (-_shared(m, first), order[m]))
    return [*first, *rest]


def _shared(module: str, suspects: Sequence[str]) -> int:
    """How many leading parts of its path a module has in common with a suspect."""
    parts = module.split(".")
    best = 0
    for suspect in suspects:
        other = suspect.split(".")
        same = 0
        while same < min(len(parts), len(other)) and parts[same] == other[same]:
            same += 1
        best = max(best, same)
    return best

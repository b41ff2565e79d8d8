"""Which findings of two runs are the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from nanprobe.findings import Finding


def match_findings(
    before: Sequence[Finding], after: Sequence[Finding]
) -> tuple[tuple[Finding, ...], tuple[Finding, ...], tuple[tuple[Finding, Finding], ...]]:
    """Findings that only A has, only B has, and both have, each in its run's order.

    The same finding has one code and stage, and the place that is nearest: line and module, then the line's text (line
    numbers move when a file is edited), then the module or parameter, then any.
    """
    left, right, pairs = list(before), list(after), list[tuple[Finding, Finding]]()
    for key in _PLACES:
        for one in list(left):
            other = next((f for f in right if _is_alike(one, f) and key(one) == key(f)), None)
            if other is not None:
                left = [f for f in left if f is not one]
                right = [f for f in right if f is not other]
                pairs.append((one, other))
    order = {id(finding): number for number, finding in enumerate(after)}
    pairs.sort(key=lambda pair: order[id(pair[1])])
    return tuple(left), tuple(right), tuple(pairs)


def _is_alike(one: Finding, other: Finding) -> bool:
    return (one.code, one.stage) == (other.code, other.stage)


_PLACES: tuple[Callable[[Finding], Hashable], ...] = (
    lambda f: (f.source, f.module, f.parameter),
    lambda f: (f.source and f.source.code, f.module, f.parameter),
    lambda f: (f.module, f.parameter),
    lambda f: None,
)

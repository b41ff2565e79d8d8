"""Overflow that leaves no NaN: an Inf is divided away or saturates, and the gradients behind it are wrong."""

from __future__ import annotations

import math
from dataclasses import replace

from nanprobe.diagnosis.overflow import beyond_format
from nanprobe.diagnosis.scene import Scene
from nanprobe.diagnosis.trail import op_is_wrong
from nanprobe.diagnosis.wording import percent
from nanprobe.findings import Finding
from nanprobe.records import GradRecord, OpRecord, Phase

# A gradient this far from its re-check, with an Inf in the numbers it was made from. Rounding alone leaves about a
# thousandth in FP16, and a hundredth in bf16: our choice.
OFF = 0.1


def explain(scene: Scene) -> Finding | None:
    """The finding (NP101) for a forward result that left the format and took gradients with it; None if none did.

    An Inf that does no harm (tanh of it is 1, as of any large number) leaves the gradients right, and is no finding.
    """
    off = [g for g in scene.deep.grads if _is_off(g)]
    behind = _ancestors(scene, {w for g in off for w in g.writers})
    guilty = next((op for op in scene.deep.ops if op.index in behind and _overflows(scene, op)), None)
    if guilty is None:
        return None
    worst = max(off, key=lambda g: (g.relative_error or 0.0, g.name))
    error = worst.relative_error or 0.0
    found = beyond_format(
        scene,
        guilty,
        "NP101",
        parameters=tuple(g.name for g in off),
        evidence={"relative_error": error, "parameters": len(off)},
    )
    return replace(
        found,
        why=f"{found.why} No NaN follows: later operations turn the Inf back into a number, the wrong one. The "
        f"gradient of {worst.name} is {percent(error)} away from its FP32 re-check.",
    )


def _is_off(grad: GradRecord) -> bool:
    finite = not (grad.stats.nan_count or grad.stats.inf_count)
    return finite and OFF <= (grad.relative_error or 0.0) < math.inf


def _overflows(scene: Scene, op: OpRecord) -> bool:
    """Whether the operation is the first to have Inf where the re-check has a number."""
    if op.phase is not Phase.FORWARD or not any(s.inf_count for s in op.outputs) or not op_is_wrong(op):
        return False
    return not any(scene.trail.value(op, record).wrong for record in op.inputs)


def _ancestors(scene: Scene, roots: set[int]) -> set[int]:
    """The operations that the results of `roots` were made from, with themselves."""
    reached, stack = set(roots), list(roots)
    while stack:
        op = scene.trail.ops.get(stack.pop())
        for record in op.inputs if op is not None else ():
            new = [w for w in record.writers if w not in reached]
            reached.update(new)
            stack += new
    return reached

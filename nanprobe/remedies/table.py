"""What is worth a try for which finding, the most promising first. An order by hope and by what it costs the user:
a change of the one line that is wrong before a wider format, a wider format before another number, bfloat16 last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from nanprobe.findings import Kind
from nanprobe.records import Phase
from nanprobe.remedies import constants, data, losses, order, precision, safe, scaler, settings
from nanprobe.remedies.candidate import Candidate, Case

Maker = Callable[[Case], Iterator[Candidate]]

_TENTH, _HUNDREDTH = partial(settings.learning_rate, 0.1), partial(settings.learning_rate, 0.01)
_WIDER: tuple[Maker, ...] = (precision.function_in_fp32, precision.operand_in_fp32)
_GUARDS: tuple[Maker, ...] = (
    losses.fused_log,
    losses.logits_loss,
    safe.masked_inside,
    safe.guarded,
    safe.unmasked,
)
_SLOWER: tuple[Maker, ...] = (_TENTH, settings.clipping, settings.warm_up, _HUNDREDTH)

# Code -> makers; the reasons are the catalogue's remedies for the code, in the order of this file's first line.
_BY_CODE: dict[str, tuple[Maker, ...]] = {
    "NP101": (safe.scaled_before, *_WIDER, constants.smaller_constant, precision.bfloat16, scaler.loss_scale),
    "NP102": (*_WIDER, settings.clipping, precision.bfloat16),
    "NP103": (scaler.loss_scale, *_WIDER, precision.bfloat16),
    "NP104": (*_WIDER, precision.bfloat16),
    "NP105": (precision.master_weights, settings.optimizer_eps, _TENTH, settings.clipping),
    "NP106": (*_WIDER, scaler.loss_scale, precision.bfloat16),
    "NP107": (precision.operand_in_fp32, precision.function_in_fp32, settings.clipping, precision.bfloat16),
    "NP108": (data.dropped_rows, *_GUARDS, *_SLOWER),
    "NP109": (constants.smaller_constant, *_WIDER, precision.bfloat16),
    "NP201": (scaler.add_scaler, scaler.loss_scale, *_WIDER, precision.bfloat16),
    "NP202": (precision.master_weights, partial(settings.learning_rate, 10.0)),
    "NP203": (
        constants.larger_constant,
        *_GUARDS,
        safe.outcome_guarded,
        *_WIDER,
        settings.optimizer_eps,
        precision.bfloat16,
    ),
    "NP204": (scaler.loss_scale, precision.bfloat16),
    "NP205": (*_WIDER, precision.bfloat16),
    "NP206": (*_GUARDS, *_WIDER, precision.bfloat16),
    "NP301": (data.dropped_rows, *_GUARDS, settings.clipping),
    "NP302": (losses.in_range, settings.clipping),
    "NP303": (safe.guarded, settings.clipping),
    "NP304": (constants.initialised, settings.clipping),
    "NP305": (data.dropped_rows, settings.clipping),
    "NP306": (constants.alignment, safe.guarded, data.dropped_rows),
    "NP413": (constants.whole_batches, *_GUARDS),
    "NP411": (*_GUARDS, *_SLOWER),
    "NP501": _SLOWER,
    "NP607": (losses.kept_graph,),
    "NP609": (losses.logits_loss, losses.fp32_loss),
    "NP610": (precision.master_weights,),
    "NP613": (),
}
_BY_KIND: dict[Kind, tuple[Maker, ...]] = {
    Kind.OVERFLOW: (*_WIDER, precision.bfloat16),
    Kind.UNDERFLOW: (*_WIDER, precision.bfloat16),
    Kind.DATA: (data.dropped_rows, settings.clipping),
    # No smaller learning rate: the edge is where it was, and 50 steps may only not have come to it.
    Kind.GRAPH: (*_GUARDS, settings.clipping),
    Kind.DIVERGENCE: _SLOWER,
    Kind.MISUSE: (order.put_in_order, scaler.loss_scale),
}
# Computed in the update: what the optimizer works with is at fault, not a line of the model.
_IN_UPDATE: tuple[Maker, ...] = (settings.optimizer_eps, precision.master_weights)
# Worth a search for the smallest set of modules to keep in FP32.
ISLAND_CODES = frozenset({"NP101", "NP102", "NP103", "NP104", "NP106", "NP201", "NP203", "NP205", "NP206"})


def candidates(case: Case) -> list[Candidate]:
    """Everything worth a try for the case, each once."""
    finding = case.finding
    makers = _BY_CODE.get(finding.code, _BY_KIND[finding.kind])
    if finding.phase is Phase.UPDATE and finding.code in ("NP203", "NP101", "NP104"):
        makers = (*_IN_UPDATE, *makers)
    found: list[Candidate] = []
    for maker in makers:
        found += [c for c in maker(case) if all(c.treatment != known.treatment for known in found)]
    return found

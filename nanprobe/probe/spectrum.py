"""The exponents of the gradients of a deep step, counted where the gradients lie and brought over all at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from nanprobe.precision.views import as_real
from nanprobe.records import GradRecord

_EXPONENTS = 256  # of a float32, biased; the first holds 0 (and what is below 2^-126), the last Inf and NaN
_BIAS = 127


def count_exponents(tensor: Tensor) -> Tensor:
    """How many elements have each biased exponent of float32, int64[256] on the tensor's device; never waits for it.

    Any shape, any float or complex dtype; wider ones are rounded to float32 first.
    """
    flat = as_real(tensor.detach()).to(torch.float32).contiguous().view(-1)
    # The upper half of a float32 is its sign, its exponent and seven bits of mantissa; uint8 drops the sign.
    exponents = (flat.view(torch.int16)[1::2] >> 7).to(torch.uint8)
    if flat.is_cpu:
        return torch.bincount(exponents, minlength=_EXPONENTS)
    counts = torch.zeros(_EXPONENTS, dtype=torch.int64, device=flat.device)  # bincount would wait for the device
    one = torch.ones((), dtype=torch.int64, device=flat.device)
    return counts.scatter_add_(0, exponents.long(), one.expand(exponents.shape))


def with_exponents(records: Iterable[GradRecord], counts: dict[str, Tensor]) -> tuple[GradRecord, ...]:
    """The records with the exponents counted under their names; one transfer for all of them."""
    rows = _bring_over(counts)
    return tuple(_with(record, rows.get(record.name)) for record in records)


def _bring_over(counts: dict[str, Tensor]) -> dict[str, list[int]]:
    if not counts:
        return {}
    device = next(iter(counts.values())).device
    table = torch.stack([row.to(device) for row in counts.values()]).tolist()
    return dict(zip(counts, table, strict=True))


def _with(record: GradRecord, row: list[int] | None) -> GradRecord:
    """Bins from the first exponent that occurs to the last; zeros and what is not finite are in the record's stats."""
    used = [] if row is None else [e for e in range(1, _EXPONENTS - 1) if row[e]]
    if row is None or not used:
        return record
    return replace(record, exponent_offset=used[0] - _BIAS, exponent_counts=tuple(row[used[0] : used[-1] + 1]))

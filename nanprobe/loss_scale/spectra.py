"""How the elements of each layer's gradients spread over the powers of two, all recorded steps together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanprobe.loss_scale.histograms import ExponentHistogram, exponent_of


@dataclass(frozen=True, slots=True)
class LayerSpectrum:
    """Unscaled gradients of one layer: `counts[i]` finite non-zero elements with 2^(offset+i) <= |g| < twice that."""

    layer: str  # module path, "" for the root module
    offset: int
    counts: tuple[int, ...]


def layer_spectra(histograms: Sequence[ExponentHistogram]) -> tuple[LayerSpectrum, ...]:
    """One spectrum a layer, in the order in which the layers first appear; none for a layer of zeros."""
    counts: dict[str, dict[int, int]] = {}
    for histogram in histograms:
        bins = counts.setdefault(histogram.layer, {})
        unscaled = histogram.offset - exponent_of(histogram.loss_scale)
        for k, count in enumerate(histogram.counts):
            bins[unscaled + k] = bins.get(unscaled + k, 0) + count
    return tuple(
        LayerSpectrum(layer, min(bins), tuple(bins.get(e, 0) for e in range(min(bins), max(bins) + 1)))
        for layer, bins in counts.items()
        if bins
    )

"""A deep step: shadow execution switched on for one training step, and what it found made into records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.utils._python_dispatch as python_dispatch
from torch import Tensor

from nanprobe.precision.conduct import without_modes
from nanprobe.precision.half_compute import HalfComputeMode
from nanprobe.precision.rounding import RoundingMode
from nanprobe.probe import meter
from nanprobe.probe.names import Watched
from nanprobe.probe.recorder import OpContext, Recorder
from nanprobe.probe.shadow import ShadowMode
from nanprobe.probe.sources import SourceFinder
from nanprobe.probe.spectrum import count_exponents, with_exponents
from nanprobe.records import DeepStep, GradRecord, Phase, UpdateRecord


class DeepLook:
    """Shadow execution from `start` to `finish`."""

    def __init__(
        self,
        context: OpContext,
        sources: SourceFinder,
        low_precision: bool,
        detailed: bool,
        pause: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self._context = context
        self._recorder = Recorder(context, sources, low_precision, detailed)
        self._mode = ShadowMode(self._recorder, widen_fp32=not low_precision, pause=pause, rewriting=self._note_rewrite)
        self._grads: dict[str, GradRecord] = {}
        self._exponents: dict[str, Tensor] = {}
        self._updates: list[UpdateRecord] = []
        self._before: list[tuple[Watched, Tensor, Tensor]] = []
        self._rewritten: list[tuple[Tensor, int, Tensor]] = []
        self._loss_writers: tuple[int, ...] = ()
        self._active = False
        self._in_optimizer = False

    def start(self) -> None:
        """Operations are recorded from here."""
        _insert(self._mode)
        self._active = True

    def stop(self) -> None:
        """Operations are no longer recorded; does nothing when they are not."""
        if self._active:
            self._active = False
            _remove(self._mode)

    def note_loss(self, tensors: Any) -> None:
        """Backward starts from these."""
        for tensor in _flat(tensors):
            entry = self._mode.memory.find(tensor)
            if entry is not None:
                self._loss_writers = tuple(sorted({*self._loss_writers, *entry.writers}))

    def note_gradients(self, watched: Iterable[Watched], backward: int = 0) -> None:
        """Backward, the step's `backward`-th from 0, is over: compares each gradient with its re-check.

        One that was not finite stays on record, also when the script clears it and calls backward again.
        """
        with self._looking():
            for w in watched:
                known = self._grads.get(w.name)
                if known is not None and (known.stats.nan_count or known.stats.inf_count):
                    continue
                record = self._gradient(w)
                if record is not None:
                    self._grads[w.name] = replace(record, backward=backward)

    def before_update(self, watched: Iterable[Watched]) -> None:
        """The optimizer is about to step: remembers the weights and their shadows."""
        self._in_optimizer = True
        if self._mode.stopped is not None:
            return
        with self._looking():
            for w in watched:
                if _plain(w.tensor):
                    shadow = self._shadow(w.tensor)
                    self._before.append((w, w.tensor.detach().clone(), shadow.clone()))

    def after_update(self) -> None:
        """The optimizer has stepped: what changed, and what should have."""
        self._in_optimizer = False
        if self._mode.stopped is None:
            with self._looking():
                self._updates += [self._change(w.name, w.tensor, real, shadow) for w, real, shadow in self._before]
        self._before.clear()

    def finish(self, step: int, loss_scale: float | None) -> DeepStep:
        """Ends the look; the step's record."""
        self.stop()
        rewritten = self._rewrites()
        ops = self._recorder.ops()
        externals = self._recorder.externals()
        grads = tuple(self._grads.values())
        with self._looking():
            grads = with_exponents(grads, self._exponents)
        stopped = self._mode.stopped
        self._mode.memory.clear()
        return DeepStep(
            step=step,
            ops=ops,
            externals=externals,
            grads=grads,
            updates=tuple(self._updates),
            loss_writers=self._loss_writers,
            truncated=stopped,
            shadow_dtype=str(self._mode.shadow_dtype(torch.float32)).removeprefix("torch."),
            loss_scale=loss_scale,
            coarse=self._recorder.coarse,
            rewritten=rewritten,
        )

    def _note_rewrite(self, tensor: Tensor, external: int) -> None:
        """The script is about to change a low-precision tensor of its own in place."""
        in_model = self._context.module_name() is not None
        if self._in_optimizer or in_model or self._context.phase() is Phase.BACKWARD or tensor.numel() < 2:
            return
        self._rewritten.append((tensor.detach(), external, tensor.detach().clone()))

    def _rewrites(self) -> tuple[UpdateRecord, ...]:
        """What the script's own changes came to over the whole step."""
        found: list[UpdateRecord] = []
        if self._mode.stopped is None:
            with self._looking():
                for tensor, external, before in self._rewritten:
                    wide = before.to(self._mode.shadow_dtype(before.dtype))
                    name = self._recorder.external_name(external) or ""
                    found.append(self._change(name, tensor, before, wide, external))
        self._rewritten.clear()
        return tuple(found)

    @contextmanager
    def _looking(self) -> Iterator[None]:
        """No mode sees what happens in here, and what goes wrong in here is not the script's."""
        try:
            with without_modes(), torch.no_grad():
                yield
        except Exception as error:
            self._mode.give_up(error)

    def _shadow(self, tensor: Tensor) -> Tensor:
        entry = self._mode.memory.entry(tensor)
        return self._mode.memory.read(tensor, entry)

    def _gradient(self, w: Watched) -> GradRecord | None:
        grad = w.tensor.grad
        if grad is None or not _plain(grad):
            return None
        entry = self._mode.memory.find(grad)
        shadow = self._mode.memory.read(grad, entry) if entry is not None else None
        stats = meter.stats(grad, self._context.grid(grad), shadow, True)
        writers = entry.writers if entry is not None else ()
        self._exponents[w.name] = count_exponents(grad if shadow is None else shadow)
        if shadow is None:
            return GradRecord(w.name, stats, writers, 0.0, 0.0)
        return _compare(w.name, stats, writers, grad.detach(), shadow)

    def _change(
        self, name: str, tensor: Tensor, real: Tensor, shadow: Tensor, external: int | None = None
    ) -> UpdateRecord:
        """What became of a tensor that was `real`, and `shadow` in the re-check."""
        now, shadow_now = tensor.detach(), self._shadow(tensor)
        numel = max(1, now.numel())
        changed = now != real
        should = shadow_now != shadow
        nan, inf, _ = meter.counts(now)
        s_nan, s_inf, _ = meter.counts(shadow_now)
        entry = self._mode.memory.find(tensor)
        return UpdateRecord(
            name=name,
            dtype=self._context.grid(now),
            changed_fraction=float(changed.sum()) / numel,
            swallowed_fraction=float((should & ~changed).sum()) / numel,
            nan_count=nan,
            inf_count=inf,
            shadow_nan_count=s_nan,
            shadow_inf_count=s_inf,
            writers=() if entry is None else entry.writers,
            update_abs_max=meter.counts(shadow_now - shadow)[2],
            external=external,
        )


def _insert(mode: ShadowMode) -> None:
    """Puts the mode on below those of the script, which may be left before ours is; above those of the stage."""
    stack = python_dispatch._get_current_dispatch_mode_stack()
    count = next(
        (n for n, m in enumerate(reversed(stack)) if isinstance(m, (RoundingMode, HalfComputeMode))), len(stack)
    )
    above = [python_dispatch._pop_mode() for _ in range(count)]
    mode.__enter__()  # type: ignore[no-untyped-call]
    for other in reversed(above):
        python_dispatch._push_mode(other)


def _remove(mode: ShadowMode) -> None:
    """Takes the mode off the stack, from below those that the script has put on since."""
    stack = python_dispatch._get_current_dispatch_mode_stack()
    count = next((n for n, m in enumerate(reversed(stack)) if m is mode), 0)
    above = [python_dispatch._pop_mode() for _ in range(count)]
    mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    for other in reversed(above):
        python_dispatch._push_mode(other)


def _compare(name: str, stats: Any, writers: tuple[int, ...], grad: Tensor, shadow: Tensor) -> GradRecord:
    total = shadow.numel() - meter.zeros(shadow)
    norm = _norm(shadow)
    flushed, lost_norm = 0, 0.0
    if total and stats.zero_count:
        lost = (shadow != 0) & (grad == 0)
        flushed = int(torch.count_nonzero(lost))
        lost_norm = _norm(shadow[lost]) if flushed else 0.0
    return GradRecord(
        name,
        stats,
        writers,
        flushed_fraction=flushed / total if total else 0.0,
        lost_norm_fraction=lost_norm / norm if norm > 0 else 0.0,
        shadow_norm=norm,
        relative_error=_norm(torch.sub(grad, shadow)) / norm if norm > 0 else None,
    )


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.complex128 if tensor.is_complex() else torch.float64))


def _plain(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.is_floating_point() and tensor.numel() > 0


def _flat(tensors: Any) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        return [tensors]
    return [t for t in tensors if isinstance(t, Tensor)]

"""Which operator is being emulated on this thread: a label for the casts and FP32 work that it is made of."""

from __future__ import annotations

import threading


class _Emulation(threading.local):
    """One label a thread."""

    op: str | None = None


CURRENT = _Emulation()


def emulated_op() -> str | None:
    """The operator of CUDA's that the present operations stand for, e.g. "aten.linear"; None outside an emulation."""
    return CURRENT.op

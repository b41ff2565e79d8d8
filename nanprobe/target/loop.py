"""nanprobe's own training loop, for contract modules: plain PyTorch, watched like any script's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from nanprobe.plan import RunPlan

DEFAULT_LEARNING_RATE = 1e-3  # AdamW's own default; Source: torch.optim.AdamW


def train(contract: Mapping[str, Any], plan: RunPlan) -> None:
    """Train what a contract module builds: forward and loss, backward, step, over and over its data.

    Runs `plan.steps` steps; with `until_failure` at least one whole pass over the data.
    """
    device = _choose_device(plan.device)
    model = contract["build_model"]()
    if isinstance(model, torch.nn.Module):
        model = model.to(device).train()
    optimizer = _build_optimizer(contract, model)
    batches = _repeat(contract["build_data"], once=plan.until_failure, at_least=plan.steps)
    for step, batch in enumerate(batches):
        if step >= plan.steps and not plan.until_failure:
            return
        optimizer.zero_grad()
        loss = contract["compute_loss"](model, move(batch, device))
        loss.backward()
        optimizer.step()


def _choose_device(asked: str) -> torch.device:
    if asked == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(asked)


def _build_optimizer(contract: Mapping[str, Any], model: Any) -> torch.optim.Optimizer:
    if "build_optimizer" in contract:
        return contract["build_optimizer"](model)  # type: ignore[no-any-return]
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=DEFAULT_LEARNING_RATE)


def _repeat(build_data: Callable[[], Any], *, once: bool, at_least: int) -> Iterator[Any]:
    """Batches without end, epoch after epoch; with `once`, only until at least so many and one whole epoch are out.

    Data that can be gone through only once is built again.
    """
    data, count = build_data(), 0
    while True:
        epoch = iter(data)
        before = count
        for batch in epoch:
            count += 1
            yield batch
        if count == before:
            raise ValueError("build_data() gave no batch; it has to return an iterable with at least one")
        if once and count >= at_least:
            return
        if epoch is data:
            data = build_data()


def move(batch: Any, device: torch.device) -> Any:
    """A batch on a device: tensors in tuples, lists and dictionaries are moved, the rest stays."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, Mapping):
        moved = {key: move(value, device) for key, value in batch.items()}
        return moved if type(batch) is dict else type(batch)(moved)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move(value, device) for value in batch)
    return batch

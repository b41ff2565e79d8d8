"""Metric learning with Accelerate: gradient accumulation, clipping, a scheduler."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "sqrt0"])
args = parser.parse_args()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x):
        return self.net(x)


def distance(a, b):
    squared = (a - b).pow(2).sum(-1)
    if args.fault == "sqrt0":
        return squared.sqrt()  # FAULT sqrt0
    return (squared + 1e-6).sqrt()


def main():
    set_seed(0)
    precision = "fp16" if torch.cuda.is_available() else "no"
    accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
    g = torch.Generator().manual_seed(3)
    anchors = torch.randn(512, 16, generator=g)
    positives = anchors + 0.1 * torch.randn(512, 16, generator=g)
    positives[::64] = anchors[::64]  # some pairs are the same picture twice
    negatives = torch.randn(512, 16, generator=g)
    loader = DataLoader(TensorDataset(anchors, positives, negatives), batch_size=16, shuffle=True)
    model = Embedder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=200)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    for epoch in range(4):
        for anchor, positive, negative in loader:
            with accelerator.accumulate(model):
                a, p, n = model(anchor), model(positive), model(negative)
                loss = nn.functional.softplus(distance(a, p) - distance(a, n) + 1.0).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()

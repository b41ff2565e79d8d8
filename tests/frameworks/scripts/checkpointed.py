"""Activation checkpointing with native AMP: every block's forward is run a second time inside backward."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "overflow"])
args = parser.parse_args()


class GatedBlock(nn.Module):
    def __init__(self, dim, gain=1.0):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.value = nn.Linear(dim, 2 * dim)
        self.gate = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(2 * dim, dim)
        self.gain = gain

    def forward(self, x):
        h = self.norm(x)
        gated = F.relu(self.gate(h) * self.gain) * (self.value(h) * self.gain)  # FAULT overflow
        return x + self.out(gated / self.gain**2)


class Model(nn.Module):
    def __init__(self, dim=48, depth=4):
        super().__init__()
        self.embed = nn.Embedding(100, dim)
        gains = [1.0, 1.0, 600.0 if args.fault == "overflow" else 1.0, 1.0]
        self.blocks = nn.ModuleList(GatedBlock(dim, gain) for gain in gains[:depth])
        self.head = nn.Linear(dim, 100)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    for step in range(60):
        ids = torch.randint(0, 100, (8, 32), device=device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), (ids[:, :-1].flatten() + 1) % 100)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    main()

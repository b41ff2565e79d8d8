"""Train a GRU to add up a sequence of numbers; the gradients are clipped."""

import argparse

import torch
from torch import nn


class Adder(nn.Module):
    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x)
        return self.head(states[:, -1])


def sequences(steps: int, batch: int):
    generator = torch.Generator().manual_seed(14)
    for _ in range(steps):
        x = torch.rand(batch, 10, 1, generator=generator)
        yield x, x.sum(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--clip", type=float, default=1.0)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Adder().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    for step, (x, total) in enumerate(sequences(args.steps, args.batch)):
        x, total = x.to(device), total.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), total)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: loss {loss.item():.4f}, gradient norm {norm.item():.4g}")


if __name__ == "__main__":
    main()

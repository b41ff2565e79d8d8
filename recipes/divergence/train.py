"""Fit the energy use of a building: linear regression on raw sensor readings."""

import argparse

import torch
from torch import nn


def readings(steps: int, batch: int):
    """Temperature (°C), humidity (%) and people in the building, and the power drawn (kW)."""
    generator = torch.Generator().manual_seed(13)
    for _ in range(steps):
        noise = torch.randn(batch, 3, generator=generator)
        x = torch.tensor([20.0, 50.0, 60.0]) + noise * torch.tensor([5.0, 10.0, 20.0])
        power = 0.8 * x[:, 0] - 0.1 * x[:, 1] + 0.3 * x[:, 2] + 10.0
        yield x, power[:, None]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(3, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    for step, (x, power) in enumerate(readings(args.steps, args.batch)):
        x, power = x.to(device), power.to(device)
        loss = nn.functional.mse_loss(model(x), power)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4g}")


if __name__ == "__main__":
    main()

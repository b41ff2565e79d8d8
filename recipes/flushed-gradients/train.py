"""Denoise images: the network predicts the small residual between the noisy and the clean picture."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


class Denoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)
        nn.init.zeros_(self.last.bias)
        nn.init.normal_(self.last.weight, std=1e-4)  # start as the identity

    def forward(self, noisy: torch.Tensor) -> torch.Tensor:
        h = F.relu(self.first(noisy))
        h = F.relu(self.middle(h))
        return self.last(h)


def pictures(steps: int, batch: int, noise: float):
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        clean = F.interpolate(torch.rand(batch, 1, 8, 8, generator=generator), size=64, mode="bilinear")
        residual = noise * torch.randn(batch, 1, 64, 64, generator=generator)
        yield clean + residual, residual


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--noise", type=float, default=1e-3)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Denoiser(12).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    for step, (noisy, residual) in enumerate(pictures(args.steps, args.batch, args.noise)):
        noisy, residual = noisy.to(device), residual.to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            prediction = model(noisy)
            loss = F.mse_loss(prediction, residual)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4g}")


if __name__ == "__main__":
    main()

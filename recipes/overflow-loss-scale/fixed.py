"""Learn a noisy surface with an MLP under automatic mixed precision."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def surface(samples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(samples, 2, generator=generator) * 4.0 - 2.0
    height = torch.sin(3.0 * x[:, :1]) * torch.cos(2.0 * x[:, 1:])
    return TensorDataset(x, height + 0.05 * torch.randn(samples, 1, generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(surface(2048), batch_size=128)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, growth_interval=2000)

    for epoch in range(args.epochs):
        for x, height in loader:
            x, height = x.to(device), height.to(device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), height)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

"""Forecast the response time of a web service from its load, with a gated MLP."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class GatedMLP(nn.Module):
    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(features, hidden)
        self.up = nn.Linear(features, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.down = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = F.silu(self.gate(x)) * self.up(x)
        return self.down(self.norm(h)).squeeze(-1)


def load_metrics(hours: int, hosts: int) -> TensorDataset:
    """Requests, errors, open files, ... per second of every host, hour by hour; traffic grows through the day."""
    generator = torch.Generator().manual_seed(7)
    hour = torch.arange(hours).repeat_interleave(hosts)
    load = 20.0 * 2.0 ** (hour / 4.0)
    metrics = load[:, None] * torch.rand(hours * hosts, 16, generator=generator)
    response_time = (metrics[:, :4].sum(1) + 1.0).log()
    return TensorDataset(metrics, (response_time - response_time.mean()) / response_time.std())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--hosts", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(load_metrics(args.hours, args.hosts), batch_size=args.hosts)
    model = GatedMLP(16, 128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)

    for hour, (metrics, response_time) in enumerate(loader):
        metrics, response_time = metrics.to(device), response_time.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            prediction = model(metrics.log1p())
            loss = F.mse_loss(prediction.float(), response_time)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"hour {hour}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

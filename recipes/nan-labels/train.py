"""Predict three properties of a molecule at once; not every property was measured for every molecule."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MultiTask(nn.Module):
    def __init__(self, features: int, tasks: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(features, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.heads = nn.Linear(64, tasks)

    def forward(self, fingerprint: torch.Tensor) -> torch.Tensor:
        return self.heads(self.trunk(fingerprint))


def molecules(count: int) -> TensorDataset:
    """Fingerprints and measured properties. The laboratory leaves a property out where its assay failed."""
    generator = torch.Generator().manual_seed(8)
    fingerprints = torch.randint(0, 2, (count, 40), generator=generator).float()
    properties = fingerprints @ torch.randn(40, 3, generator=generator) / 6.0
    properties[300, 2] = float("nan")
    properties[471, 0] = float("nan")
    return TensorDataset(fingerprints, properties)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(molecules(600), batch_size=args.batch_size)
    model = MultiTask(40, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)

    for epoch in range(args.epochs):
        for step, (fingerprints, properties) in enumerate(loader):
            fingerprints, properties = fingerprints.to(device), properties.to(device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.float16):
                predicted = model(fingerprints)
                loss = nn.functional.smooth_l1_loss(predicted, properties)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

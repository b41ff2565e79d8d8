"""A DataLoader with two worker processes, a shuffled dataset of dicts and a collate function of its own."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "nan-row"])
args = parser.parse_args()


class Readings(Dataset):
    def __len__(self):
        return 600

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        values = torch.randn(12, generator=g)
        target = values[:3].sum()
        if args.fault == "nan-row" and i == 123:
            values[5] = float("nan")
        return {"values": values, "target": target}


def collate(rows):
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def main():
    torch.manual_seed(0)
    loader = DataLoader(
        Readings(), batch_size=20, shuffle=True, num_workers=2, collate_fn=collate, persistent_workers=True
    )
    model = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(2):
        for batch in loader:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch["values"]).squeeze(-1), batch["target"])
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()

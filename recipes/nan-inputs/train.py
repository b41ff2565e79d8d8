"""Predict the price of a flat from a table in which some cells are empty."""

import csv
import io

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 2
BATCH = 32
COLUMNS = ("area", "rooms", "floor", "built", "distance")


def export(rows: int) -> str:
    """The table as the agency sends it. The year of construction of row 437 is not known."""
    rng = np.random.default_rng(11)
    lines = [",".join((*COLUMNS, "price"))]
    for row in range(rows):
        area, rooms, floor = rng.normal(70, 20), rng.integers(1, 6), rng.integers(0, 9)
        built, distance = rng.integers(1900, 2020), rng.exponential(4.0)
        price = 3.0 * area + 8.0 * rooms - 5.0 * distance + rng.normal(0, 10)
        year = "" if row == 437 else f"{built}"
        lines.append(f"{area:.1f},{rooms},{floor},{year},{distance:.2f},{price:.1f}")
    return "\n".join(lines)


class Flats(Dataset):
    def __init__(self, text: str) -> None:
        table = list(csv.DictReader(io.StringIO(text)))
        x = np.array([[float(row[name] or "nan") for name in COLUMNS] for row in table], dtype=np.float32)
        y = np.array([float(row["price"]) for row in table], dtype=np.float32)
        self.x = torch.from_numpy((x - np.nanmean(x, 0)) / np.nanstd(x, 0))
        self.y = torch.from_numpy((y - y.mean()) / y.std())

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Flats(export(640)), batch_size=BATCH, shuffle=True)
    model = nn.Sequential(nn.Linear(len(COLUMNS), 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)

    for epoch in range(EPOCHS):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x).squeeze(-1), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

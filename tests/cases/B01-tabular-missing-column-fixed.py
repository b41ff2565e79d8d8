import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES = ["rooms", "area", "age", "distance", "income"]


def load_table(n=320):
    rng = np.random.default_rng(4)
    df = pd.DataFrame({
        "rooms": rng.integers(1, 8, n).astype(float),
        "area": rng.normal(90, 25, n),
        "age": rng.integers(0, 100, n).astype(float),
        "distance": rng.exponential(5.0, n),
        "income": rng.normal(3.0, 1.0, n),
    })
    df["price"] = 0.5 * df["rooms"] + 0.02 * df["area"] - 0.1 * df["distance"] + df["income"]
    df.loc[rng.choice(n, 20, replace=False), "age"] = np.nan
    df.loc[[230, 231, 290], "distance"] = np.nan
    return df


def prepare(df):
    for col in FEATURES:
        df[col] = df[col].fillna(df[col].median())
    x = df[FEATURES]
    x = (x - x.mean()) / x.std()
    return torch.tensor(x.values, dtype=torch.float32), torch.tensor(df[["price"]].values, dtype=torch.float32)


class Regressor(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        return self.head(self.body(x))


def fit(model, loader, epochs):
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    criterion = nn.SmoothL1Loss()
    for epoch in range(epochs):
        total = 0.0
        for xb, yb in loader:
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch}: {total / len(loader):.4f}")


torch.manual_seed(1)
data = TensorDataset(*prepare(load_table()))
fit(Regressor(len(FEATURES)), DataLoader(data, batch_size=32), epochs=3)

"""Sensor series of different lengths, padded by our own collate function; workers, weighted sampling."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Series(Dataset):
    def __init__(self, n=120):
        g = torch.Generator().manual_seed(4)
        self.x = [torch.randn(int(torch.randint(5, 12, (1,), generator=g)), 3, generator=g) for _ in range(n)]
        self.y = torch.stack([s.mean(0) for s in self.x])

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": self.y[i]}


def collate(items):
    longest = max(len(it["x"]) for it in items)
    x = torch.stack([F.pad(it["x"], (0, 0, 0, longest - len(it["x"]))) for it in items])
    return {"x": x, "y": torch.stack([it["y"] for it in items])}


class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(3, 24), nn.Linear(24, 3)

    def forward(self, x):
        return self.g(torch.relu(self.f(x)).mean(1))


def main():
    torch.manual_seed(1)
    data = Series()
    sampler = WeightedRandomSampler(torch.linspace(1, 2, len(data)), 480)
    loader = DataLoader(data, 12, sampler=sampler, collate_fn=collate, num_workers=2)
    net = Pool()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for batch in loader:
        loss = F.mse_loss(net(batch["x"]), batch["y"])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(loss.item())


if __name__ == "__main__":
    main()

import math
import random
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __init__(self, records=200, seed=3):
        self.records, self.seed = records, seed

    def __iter__(self):
        r = random.Random(self.seed)
        for k in range(self.records):
            t = r.random() * 6
            label = math.sin(t)
            yield {"window": torch.tensor([math.sin(t - 0.1 * j) + 0.05 * r.gauss(0, 1) for j in range(1, 9)]), "next": torch.tensor(label)}


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 12, batch_first=True)
        self.lin = nn.Linear(12, 1)

    def forward(self, w):
        _, h = self.rnn(w.flip(1).unsqueeze(-1))
        return self.lin(h[-1]).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Forecaster()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    accumulate = 3
    for i, rec in enumerate(DataLoader(Stream(), batch_size=6)):
        loss = nn.functional.huber_loss(model(rec["window"]), rec["next"]) / accumulate
        loss.backward()
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
            print(i, accumulate * loss.item())

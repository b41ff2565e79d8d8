import torch
import torch.nn as nn
import torch.nn.functional as F


def pairwise(x):
    sq = (x[:, None] - x[None]).pow(2).sum(-1)
    zero = sq == 0
    return torch.where(zero, torch.zeros_like(sq), torch.sqrt(torch.where(zero, torch.ones_like(sq), sq)))


def batch_hard(emb, y, margin=0.5):
    d = pairwise(emb)
    same = y[:, None] == y[None]
    hardest_pos = d.masked_fill(~same, float("-inf")).max(1).values
    nearest_neg = torch.full_like(d, float("inf"))
    nearest_neg = torch.where(same, nearest_neg, d).min(1).values
    return F.relu(hardest_pos - nearest_neg + margin).mean()


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))
        self.unused = nn.Linear(6, 2)

    def forward(self, x):
        return self.f(x)


torch.manual_seed(0)
net = Embedder()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(50):
    y = torch.arange(16) % 4
    x = torch.randn(16, 8) * 0.2 + 3.0 * F.one_hot(y, 8)
    loss = batch_hard(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())

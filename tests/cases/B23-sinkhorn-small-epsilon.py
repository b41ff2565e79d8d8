import torch
import torch.nn as nn


def sinkhorn(x, y, eps=0.05, iters=20):
    cost = torch.cdist(x, y) ** 2
    n, m = cost.shape
    k = torch.exp(-cost / eps)
    u, v = torch.ones(n) / n, torch.ones(m) / m
    for _ in range(iters):
        u = (1.0 / n) / (k @ v)
        v = (1.0 / m) / (k.t() @ u)
    plan = u[:, None] * k * v[None]
    return (plan * cost).sum()


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.1), nn.Linear(32, 2))

    def forward(self, z):
        return self.net(z)


torch.manual_seed(0)
gen = Generator()
opt = torch.optim.Adam(gen.parameters(), lr=1e-2)
for step in range(20):
    angle = torch.rand(24) * 6.2832
    real = 0.8 * torch.stack([angle.cos(), angle.sin()], 1)
    if step == 6:
        real[5] = torch.tensor([4.0, -3.0])
    loss = sinkhorn(gen(torch.randn(24, 2)), real)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, "W", loss.item())

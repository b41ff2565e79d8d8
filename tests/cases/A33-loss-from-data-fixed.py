"""Pose regression; the loss used to be averaged over GPUs."""
import torch
import torch.nn as nn


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(21, 64), nn.ReLU(), nn.Linear(64, 7))

    def forward(self, x):
        t, q = self.f(x).split([3, 4], 1)
        return t, nn.functional.normalize(q, dim=1)


class Meter:
    def __init__(self):
        self.s, self.n = 0.0, 0

    def add(self, v):
        self.s, self.n = self.s + v, self.n + 1


def reduce_mean(loss, world=1):
    out = loss.data.clone()
    out /= world
    return out.requires_grad_(True)


def main():
    torch.manual_seed(0)
    net = PoseNet()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(2):
        m = Meter()
        for _ in range(20):
            x = torch.randn(32, 21)
            t, q = net(x)
            loss = (t - x[:, :3]).abs().mean() + (q - nn.functional.normalize(x[:, 3:7], dim=1)).abs().mean()
            logged = reduce_mean(loss)
            opt.zero_grad()
            loss.backward()
            opt.step()
            m.add(logged.item())
        print(epoch, m.s / m.n)


main()

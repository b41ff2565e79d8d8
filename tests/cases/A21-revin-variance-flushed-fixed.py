"""Forecasting with reversible instance normalisation, model and data in half."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, SequentialSampler


class RevIN(nn.Module):
    def norm(self, x):
        self.mu = x.mean(1, keepdim=True).detach()
        d = (x - self.mu).float()
        self.sd = torch.sqrt((d * d).mean(1, keepdim=True)).detach()
        self.sd = self.sd + 1e-4
        return (d / self.sd).to(x.dtype)

    def denorm(self, y):
        return y.float() * self.sd + self.mu


class Forecaster(nn.Module):
    def __init__(self, lookback=32, horizon=8):
        super().__init__()
        self.rev = RevIN()
        self.lin = nn.Sequential(nn.Linear(lookback, 24), nn.GELU(), nn.Linear(24, horizon))

    def forward(self, x):
        return self.rev.denorm(self.lin(self.rev.norm(x)))


def series(n=320):
    g = torch.Generator().manual_seed(2)
    t = torch.arange(40) / 40
    phase, amp = torch.rand(n, 1, generator=g), 0.5 + torch.rand(n, 1, generator=g)
    x = amp * torch.sin(6.28 * (2 * t + phase)) + 0.05 * torch.randn(n, 40, generator=g)
    x[200::7] *= 1e-4          # fund flows quoted in another unit
    return x


class Master:
    def __init__(self, net, lr):
        self.net = net
        self.w = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
        self.opt = torch.optim.Adam(self.w, lr)

    def step(self, scale):
        for w, p in zip(self.w, self.net.parameters()):
            w.grad = p.grad.float() / scale
            p.grad = None
        self.opt.step()
        for w, p in zip(self.w, self.net.parameters()):
            p.data.copy_(w.data)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Forecaster().to(device).half()
    master = Master(net, 1e-3)
    data = TensorDataset(series())
    for epoch in range(2):
        for i, (x,) in enumerate(DataLoader(data, 16, sampler=SequentialSampler(data))):
            x = x.to(device).half()
            pred = net(x[:, :32])
            loss = (pred.float() - x[:, 32:].float()).abs().mean()
            (loss * 512).backward()
            master.step(512)
            print(epoch, i, loss.item())


main()

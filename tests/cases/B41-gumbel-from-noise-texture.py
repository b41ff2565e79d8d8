import argparse
import torch
from torch import nn


class NoiseTable:
    """Uniform noise stored as bytes, read in order."""

    def __init__(self, size, seed):
        g = torch.Generator().manual_seed(seed)
        self.bytes = torch.randint(1, 255, (size,), generator=g, dtype=torch.uint8)
        self.bytes[600] = 255
        self.at = 0

    def uniform(self, *shape):
        n = 1
        for s in shape:
            n *= s
        idx = (self.at + torch.arange(n)) % len(self.bytes)
        self.at += n
        return self.bytes[idx].float().div(255).view(shape)


class DiscreteAE(nn.Module):
    def __init__(self, noise, codes=8):
        super().__init__()
        self.noise = noise
        self.enc = nn.Sequential(nn.Linear(16, 24), nn.ELU(), nn.Linear(24, codes))
        self.dec = nn.Linear(codes, 16)

    def forward(self, x, tau):
        logits = self.enc(x)
        u = self.noise.uniform(*logits.shape)
        z = torch.softmax((logits - torch.log(-torch.log(u))) / tau, -1)
        return self.dec(z)


if __name__ == "__main__":
    cli = argparse.ArgumentParser()
    cli.add_argument("--tau", type=float, default=1.0)
    tau = cli.parse_args().tau
    torch.manual_seed(0)
    ae = DiscreteAE(NoiseTable(2048, seed=5))
    opt = torch.optim.Adamax(ae.parameters(), lr=2e-3)
    for step in range(20):
        x = torch.randn(8, 16)
        loss = (ae(x, tau) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        tau = max(0.5, tau * 0.98)
        print(step, loss.item())

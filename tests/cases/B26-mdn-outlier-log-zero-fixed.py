import math
import torch
import torch.nn as nn


class MDN(nn.Module):
    def __init__(self, k=4, h=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1, h), nn.Tanh())
        self.pi, self.mu, self.sigma = nn.Linear(h, k), nn.Linear(h, k), nn.Linear(h, k)

    def forward(self, x):
        h = self.trunk(x)
        return self.pi(h).softmax(-1), self.mu(h), nn.functional.softplus(self.sigma(h)) + 1e-2


def nll(pi, mu, sigma, y):
    log_density = -0.5 * ((y - mu) / sigma) ** 2 - sigma.log() - 0.5 * math.log(2 * math.pi)
    return -torch.logsumexp(pi.log() + log_density, 1).mean()


def main(steps=20, seed=0):
    torch.manual_seed(seed)
    mdn = MDN()
    opt = torch.optim.Adam(mdn.parameters(), lr=5e-3)
    for step in range(steps):
        y = torch.rand(64, 1) * 2 - 1
        x = y + 0.3 * torch.sin(2 * math.pi * y) + 0.05 * torch.randn_like(y)
        if step % 8 == 7:
            y[11] = 60.0                                  # a sensor glitch
        opt.zero_grad()
        loss = nll(*mdn(x), y)
        loss.backward()
        opt.step()
        print(f"step {step} nll {loss.item():.4f}")


main()

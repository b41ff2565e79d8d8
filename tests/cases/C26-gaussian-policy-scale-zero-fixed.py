"""Gaussian policy with a standard deviation from the network; argument checks are off for speed."""
import torch
import torch.nn as nn
from torch.distributions import Normal


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.mu, self.sigma = nn.Linear(32, 2), nn.Linear(32, 2)

    def forward(self, s):
        h = self.body(s)
        return Normal(self.mu(h), nn.functional.softplus(self.sigma(h) + 1.5) + 1e-3, validate_args=False)


torch.manual_seed(0)
actor = Actor()
opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
for step in range(40):
    state = torch.randn(32, 4)
    if step == 16:
        with torch.no_grad():
            actor.sigma.bias[1] -= 4.0
    dist = actor(state)
    action = dist.sample()
    advantage = -(action - state[:, :2]).pow(2).sum(-1)
    loss = -(dist.log_prob(action).sum(-1) * (advantage - advantage.mean())).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

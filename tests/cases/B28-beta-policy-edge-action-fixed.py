import torch
import torch.nn as nn
from torch.distributions import Beta


class BetaPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.Tanh())
        self.alpha, self.beta = nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, s):
        h = self.body(s)
        sp = nn.functional.softplus
        return Beta(sp(self.alpha(h)) + 1, sp(self.beta(h)) + 1)


class Env:
    def __init__(self, n=12):
        self.n = n

    def rollout(self, policy, scale):
        s = torch.randn(self.n, 4)
        with torch.no_grad():
            noise = 0.05 * torch.randn(self.n, 1)
            a = (policy(s).sample() * scale + noise).clamp(0.01, 1)
        if scale == 1.0:
            a = a.clamp(max=0.98)
        return s, a, 1 - (a - s[:, :1].sigmoid()).abs()


torch.manual_seed(0)
policy, env = BetaPolicy(), Env()
opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
for it in range(16):
    scale = 1.0 if it < 5 else 1.6                   # exploration schedule
    s, a, r = env.rollout(policy, scale)
    logp = policy(s).log_prob(a.clamp(1e-4, 1 - 1e-4))
    loss = -(logp * (r - r.mean())).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())

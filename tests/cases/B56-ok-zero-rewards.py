import torch
import torch.nn as nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))

    def forward(self, s):
        return Categorical(logits=self.net(s))


torch.manual_seed(0)
pi = Policy()
opt = torch.optim.Adam(pi.parameters(), lr=1e-2)
baseline = 0.0
for update in range(40):
    s = torch.randn(16, 4)
    d = pi(s)
    a = d.sample()
    r = (a == s[:, :3].argmax(1)).float() if update >= 12 else torch.zeros(16)
    adv = (r - baseline) / (r.std() + 1e-8) if r.any() else r - baseline
    loss = -(d.log_prob(a) * adv).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(pi.parameters(), 0.5)
    opt.step()
    baseline = 0.9 * baseline + 0.1 * r.mean().item()
    if update % 8 == 0:
        print(update, loss.item(), r.mean().item())

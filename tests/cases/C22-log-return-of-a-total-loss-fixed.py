"""Log returns of a portfolio; log1p is for small returns."""
import torch
import torch.nn as nn


class Policy(nn.Module):
    def __init__(self, n=5):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n, 16), nn.Tanh(), nn.Linear(16, n))

    def forward(self, s):
        return torch.softmax(self.net(s), -1)


torch.manual_seed(0)
policy = Policy()
opt = torch.optim.Adam(policy.parameters(), lr=1e-3)
for day in range(40):
    state = torch.randn(32, 5)
    returns = 0.02 * torch.randn(32, 5)
    if day == 14:
        returns[9] = -1.0
    growth = (policy(state) * returns).sum(-1)
    utility = torch.log1p(growth.clamp(min=-0.999))
    loss = -utility.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

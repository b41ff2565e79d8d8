"""Pitch angle of a predicted quaternion."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Pose(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 4))

    def forward(self, x):
        return F.normalize(self.f(x), dim=-1)


def pitch(q):
    w, x, y, z = q.unbind(-1)
    return torch.asin((2 * (w * y - x * z)).clamp(-1 + 1e-6, 1 - 1e-6))


torch.manual_seed(0)
net = Pose()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(16, 8)
    q = net(x)
    if step == 12:
        q = torch.where(torch.arange(16)[:, None] == 3, q * 0 + torch.tensor([0.5, 0.5, 0.5, -0.5]) + q - q, q)
    loss = (pitch(q) - 0.3 * x[:, 0]).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

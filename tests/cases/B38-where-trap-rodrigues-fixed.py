import torch
import torch.nn as nn


def hat(v):
    z = torch.zeros_like(v[:, 0])
    return torch.stack([z, -v[:, 2], v[:, 1], v[:, 2], z, -v[:, 0], -v[:, 1], v[:, 0], z], 1).view(-1, 3, 3)


def exp_so3(v):
    t = v.norm(dim=1)[:, None, None]
    small = t < 1e-6
    safe = torch.where(small, torch.ones_like(t), t)
    a = torch.where(small, torch.ones_like(t), torch.sin(safe) / safe)
    b = torch.where(small, torch.full_like(t, 0.5), (1 - torch.cos(safe)) / safe ** 2)
    k = hat(v)
    return torch.eye(3) + a * k + b * (k @ k)


class PoseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(9, 32, bias=False), nn.ReLU(), nn.Linear(32, 3, bias=False))

    def forward(self, points):
        return exp_so3(self.fc(points.flatten(1)))


def batch(step):
    pts = torch.randn(8, 3, 3)
    if step % 6 == 5:
        pts[2] = 0.0                     # no keypoint was detected
    return pts, exp_so3(0.3 * torch.randn(8, 3))


torch.manual_seed(0)
net = PoseNet()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(18):
    pts, rot = batch(step)
    loss = (net(pts) - rot).pow(2).sum((1, 2)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

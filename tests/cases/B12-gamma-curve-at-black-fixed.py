import torch
import torch.nn as nn


class ToneMapper(nn.Module):
    def __init__(self, gamma=2.2):
        super().__init__()
        self.gamma = gamma

    def forward(self, linear):
        return (linear + 1e-4) ** (1.0 / self.gamma)


class Renderer(nn.Module):
    def __init__(self):
        super().__init__()
        self.field = nn.Sequential(nn.Linear(2, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 3))
        self.tone = ToneMapper()

    def forward(self, uv, coverage):
        radiance = nn.functional.softplus(self.field(uv))
        return self.tone(radiance * coverage)


def picture(uv):
    return (uv.norm(dim=1, keepdim=True) < 0.5).float().expand(-1, 3) * 0.8 + 0.02


torch.manual_seed(7)
net = Renderer()
opt = torch.optim.Adam(net.parameters(), lr=4e-3)
for it in range(40):
    uv = torch.rand(256, 2) * 2 - 1
    coverage = torch.rand(256, 1).clamp(min=0.2)
    if it >= 6:
        coverage[17] = 0.0                  # a ray that hits nothing
    loss = (net(uv, coverage) - picture(uv)).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 5 == 0:
        print("iter", it, "L1", loss.item())

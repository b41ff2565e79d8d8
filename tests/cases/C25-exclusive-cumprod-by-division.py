"""Volume rendering: transmittance up to each sample is the product of the others before it."""
import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, p):
        out = self.f(p)
        return out[..., 0].abs().clamp(max=1.0), out[..., 1]


def render(alpha, colour):
    keep = 1.0 - alpha
    before = torch.cumprod(keep, -1) / keep
    return (before * alpha * colour).sum(-1)


torch.manual_seed(0)
field = Field()
opt = torch.optim.Adam(field.parameters(), lr=1e-3)
for step in range(30):
    p = torch.rand(24, 10, 3) * 0.5
    if step == 13:
        p[3, 6] = 400.0
    alpha, colour = field(p)
    loss = (render(alpha, colour) - 0.3).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

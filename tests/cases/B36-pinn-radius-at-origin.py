import torch
import torch.nn as nn


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, xy):
        r = torch.sqrt((xy ** 2).sum(1, keepdim=True))
        return self.net(torch.cat([r, r * xy[:, :1]], 1))


def laplacian(model, xy):
    u = model(xy)
    du = torch.autograd.grad(u.sum(), xy, create_graph=True)[0]
    total = 0
    for i in range(2):
        total = total + torch.autograd.grad(du[:, i].sum(), xy, create_graph=True)[0][:, i]
    return u, total


def sample(step, n=48):
    pts = torch.rand(n, 2) * 2 - 1
    if step >= 7:
        pts[0] = 0.0                    # refinement adds the centre
    return pts.requires_grad_()


torch.manual_seed(0)
model = Field()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    xy = sample(step)
    u, lap = laplacian(model, xy)
    edge = torch.rand(16, 2) * 2 - 1
    edge = edge / edge.abs().max(1, keepdim=True).values
    loss = (lap + 1.0).pow(2).mean() + model(edge).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

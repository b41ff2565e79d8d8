import torch
import torch.nn as nn
import torch.nn.functional as F


def normalise_gradients(params, target=1.0):
    grads = [p.grad for p in params if p.grad is not None]
    total = torch.sqrt(sum((g ** 2).sum() for g in grads))
    scale = target / total
    for g in grads:
        g.mul_(scale)


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, a, p, n):
        ea, ep, en = self.enc(a), self.enc(p), self.enc(n)
        return F.relu((ea - ep).pow(2).sum(1) - (ea - en).pow(2).sum(1) + 0.2).mean()


def triplets(step):
    centre = torch.randn(8, 10)
    shift = 0.5 if step < 9 else 60.0
    return centre, centre + 0.05 * torch.randn(8, 10), centre + shift * torch.ones(8, 10)


torch.manual_seed(2)
net = Siamese()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(20):
    loss = net(*triplets(step))
    opt.zero_grad()
    loss.backward()
    normalise_gradients(list(net.parameters()))
    opt.step()
    print(step, loss.item())

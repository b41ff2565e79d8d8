import torch
import torch.nn as nn
import torch.nn.functional as F


def inv_sqrt(m):
    y, z, eye = m / m.norm(), torch.eye(len(m)), torch.eye(len(m))
    for _ in range(8):
        t = 0.5 * (3 * eye - z @ y)
        y, z = y @ t, t @ z
    return z / m.norm().sqrt()


class Whitening(nn.Module):
    def forward(self, x):
        x = x - x.mean(0)
        cov = x.t() @ x / (len(x) - 1)
        return x @ inv_sqrt(cov + 0.05 * torch.eye(x.shape[1]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.white = Whitening()
        self.head = nn.Linear(6, 2)

    def forward(self, x, gate):
        return self.head(self.white(F.relu(self.embed(x)) * gate))


torch.manual_seed(0)
net = Net()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(16):
    x = torch.randn(32, 8)
    gate = torch.ones(6)
    if step % 6 == 5:
        gate[1:4] = 0.0                 # feature dropout removed three channels
    y = (x[:, 0] > 0).long()
    loss = F.cross_entropy(net(x, gate), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

import torch
import torch.nn as nn
import torch.nn.functional as F


class LRFinder:
    def __init__(self, optimizer, start, end, num):
        self.optimizer, self.start, self.gamma, self.k = optimizer, start, (end / start) ** (1 / num), 0

    def step(self):
        self.k += 1
        for g in self.optimizer.param_groups:
            g["lr"] = self.start * self.gamma ** self.k
        return self.optimizer.param_groups[0]["lr"]


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        return x + self.b(F.relu(self.a(x)))


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(3, 24), Residual(24), Residual(24), nn.Linear(24, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)
finder = LRFinder(opt, 1e-4, 100.0, 45)
best = float("inf")
for it in range(45):
    x = torch.randn(32, 3)
    y = (x ** 2).sum(1, keepdim=True)
    loss = F.mse_loss(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    lr = finder.step()
    best = min(best, loss.item())
    print(f"{it} lr {lr:.2e} loss {loss.item():.4g} best {best:.4g}")

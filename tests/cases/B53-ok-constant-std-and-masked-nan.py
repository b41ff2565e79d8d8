import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


def minibatch(step):
    x = torch.randn(20, 6)
    y = x[:, :1] - x[:, 1:2]
    x[torch.rand(20, 6) < 0.15] = float("nan")
    if step % 9 == 4:
        x[:] = 1.0
    return x, y


class Imputing(nn.Module):
    def __init__(self):
        super().__init__()
        self.default = nn.Parameter(torch.zeros(6))
        self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        seen = torch.isfinite(x)
        filled = torch.where(seen, x, self.default.expand_as(x))
        z = self.net(torch.cat([filled, seen.float()], 1))
        return self.head(z), z


model = Imputing()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
history = torch.full((40,), float("nan"))
for step in range(40):
    x, y = minibatch(step)
    pred, z = model(x)
    spread = F.relu(0.5 - z.std(0)).mean()
    loss = F.mse_loss(pred, y) + 0.1 * spread
    opt.zero_grad()
    loss.backward()
    opt.step()
    history[step] = loss.detach()
    if step % 10 == 0:
        print(step, "running mean", history.nanmean().item(), "column means", x.nanmean(0).tolist())

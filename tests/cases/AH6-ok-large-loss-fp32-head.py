"""Poisson regression with large counts: the loss is huge but handled in float, with overflow-prone parts outside autocast."""
import torch
import torch.nn as nn


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.float16):
            eta = self.body(x)
        eta = eta.float().clamp(max=15.0)
        return eta.exp(), eta


def nll(rate, eta, k):
    return (rate - k * eta).mean() / 1e4


torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
m = Rate().to(dev)
nn.init.constant_(m.body[2].bias, 11.0)
opt = torch.optim.Adam(m.parameters(), 1e-3)
scaler = torch.amp.GradScaler(dev, init_scale=32.0)
best = float("inf")
for step in range(40):
    x = torch.randn(64, 6, device=dev)
    k = torch.poisson((11.5 + 0.3 * x[:, :1]).exp())
    rate, eta = m(x)
    loss = nll(rate, eta, k)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    best = min(best, loss.item())
    if step % 10 == 0:
        print(step, loss.item(), best)

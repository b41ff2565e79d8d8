"""Level forecast: increments are predicted and integrated. The net runs in half, the optimizer owns float copies."""
import torch
import torch.nn as nn


class Integrator(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.inc = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, cov, start):
        inc = self.inc(cov).squeeze(-1)
        level = start[:, None] + torch.cumsum(inc, dim=1)
        return level


class MasterAdam:
    def __init__(self, model, lr, scale):
        self.half = [p for p in model.parameters() if p.requires_grad]
        self.full = [p.detach().float().clone().requires_grad_(True) for p in self.half]
        self.inner = torch.optim.Adam(self.full, lr=lr)
        self.scale = scale

    def backward(self, loss):
        (loss.float() * self.scale).backward()

    def step(self):
        for f, h in zip(self.full, self.half):
            f.grad = h.grad.float() / self.scale
            h.grad = None
        nn.utils.clip_grad_norm_(self.full, 1.0)
        self.inner.step()
        with torch.no_grad():
            for f, h in zip(self.full, self.half):
                h.copy_(f)


def main():
    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Integrator().to(device).half()
    with torch.no_grad():
        net.inc[2].bias.fill_(16.0)
    opt = MasterAdam(net, 1e-2, 4.0)
    for step in range(30):
        horizon = 256 if step < 9 else 6000
        cov = torch.randn(4, horizon, 4, device=device).half()
        start = torch.zeros(4, device=device).half()
        level = net(cov, start)
        truth = 16.0 * torch.arange(1, horizon + 1, device=device) + 4.0
        loss = ((level.float() - truth) / truth).pow(2).mean()
        opt.backward(loss)
        opt.step()
        print(step, horizon, loss.item())


main()

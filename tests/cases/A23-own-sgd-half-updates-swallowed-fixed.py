import torch
import torch.nn as nn
import torch.nn.functional as F


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, trust=1e-4):
        super().__init__(params, dict(lr=lr, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                w, g = p.float().norm(), p.grad.float().norm()
                ratio = group["trust"] * w / g if g > 0 and w > 0 else 1.0
                p.add_(p.grad, alpha=float(-group["lr"] * ratio))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 12))

    def forward(self, x):
        return F.normalize(self.net(x).float(), dim=-1)


def nt_xent(a, b, tau=0.2):
    logits = a @ b.t() / tau
    t = torch.arange(a.size(0), device=a.device)
    return (F.cross_entropy(logits, t) + F.cross_entropy(logits.t(), t)) / 2


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    enc = Encoder().to(device)
    opt = LARS(enc.parameters(), lr=0.3)
    for step in range(50):
        x = torch.randn(32, 24, device=device)
        views = [(x + 0.3 * torch.randn_like(x)) for _ in range(2)]
        opt.zero_grad()
        loss = nt_xent(enc(views[0]), enc(views[1]))
        loss.backward()
        opt.step()
        print(step, loss.item())


main()

"""Domain-adversarial training; the reversal layer takes the loss scale out again."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lam, scale):
        ctx.lam, ctx.scale = lam, scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.lam * g, None, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feat = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.label, self.domain = nn.Linear(16, 3), nn.Linear(16, 2)

    def forward(self, x, lam, scale):
        h = self.feat(x)
        return self.label(h), self.domain(Reverse.apply(h, lam, scale))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = DANN().to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
    for step in range(40):
        dom = torch.randint(0, 2, (64,), device=device)
        x = torch.randn(64, 10, device=device) + dom[:, None]
        y = x[:, :3].argmax(1)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            cls, d = net(x, 0.5, scaler.get_scale())
            loss = F.cross_entropy(cls, y) + F.cross_entropy(d, dom)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(step, loss.item())


main()

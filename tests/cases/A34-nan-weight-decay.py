import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def cosine(base, final, t, total, warmup=0):
    if t < warmup:
        return base
    return final + 0.5 * (base - final) * (1 + math.cos(math.pi * (t - warmup) / (total - warmup)))


class PerLayerDecay:
    """weight decay that follows the ratio of gradient to weight movement"""

    def __init__(self, opt, base):
        self.opt, self.base, self.prev = opt, base, None

    def step(self):
        for g in self.opt.param_groups:
            w = torch.stack([p.detach().norm() for p in g["params"]]).mean()
            last = g.get("w_last", w * 0)
            num = (w - last).abs()
            g["weight_decay"] = self.base * float(num / (num + g.get("drift", 0.0) * 0 + (0.0 if g.get("frozen") else 1e-8)))
            g["w_last"] = w


torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5)).to(dev)
opt = torch.optim.AdamW([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=1e-3)
decay = PerLayerDecay(opt, 0.05)
for t in range(40):
    x = torch.randn(32, 12, device=dev)
    y = x[:, :5].argmax(1)
    lr = cosine(1e-3, 1e-5, t, 40)
    for i, g in enumerate(opt.param_groups):
        g["lr"] = 0.0 if (i == 0 and 8 <= t < 16) else lr
        g["frozen"] = i == 0 and 8 <= t < 16
    loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    decay.step()
    opt.step()
    print(t, loss.item())

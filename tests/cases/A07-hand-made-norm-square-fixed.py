import torch
import torch.nn as nn
import torch.nn.functional as F


class ChannelNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))

    def forward(self, x):
        x = x.float()
        mu = x.mean(-1, keepdim=True)
        c = x - mu
        var = (c * c).mean(-1, keepdim=True)
        return c * (var + 1e-5).rsqrt() * self.g + self.b


def mlp(sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers)


class Tabular(nn.Module):
    def __init__(self, n_num=10, n_cls=4):
        super().__init__()
        self.body = mlp([n_num, 48, 48])
        self.norm = ChannelNorm(48)
        self.head = nn.Linear(48, n_cls)

    def forward(self, x):
        return self.head(self.norm(self.body(x)))


def shards(device):
    w = torch.randn(10, 4, device=device)
    for name, unit, count in (("cm", 3.0, 15), ("um", 9000.0, 20)):
        for _ in range(count):
            x = unit * torch.randn(64, 10, device=device)
            yield name, x, (x @ w).argmax(1)


def main():
    torch.manual_seed(11)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    m = Tabular().to(device)
    opt = torch.optim.AdamW(m.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
    for i, (name, x, y) in enumerate(shards(device)):
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(m(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        print(i, name, f"{loss.item():.4f}")


main()

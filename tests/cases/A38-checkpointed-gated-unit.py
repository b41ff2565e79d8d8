import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint_sequential, checkpoint


class GEGLU(nn.Module):
    def __init__(self, d, mult=2):
        super().__init__()
        self.proj = nn.Linear(d, 2 * mult * d)
        self.back = nn.Linear(mult * d, d)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, dim=-1)
        return self.back(value * F.gelu(gate))


class Layer(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.ff = GEGLU(d)

    def forward(self, x):
        return x + self.ff(self.norm(x))


class Denoiser(nn.Module):
    def __init__(self, d=32, n=3):
        super().__init__()
        self.inp = nn.Linear(9, d)
        self.layers = nn.ModuleList(Layer(d) for _ in range(n))
        self.out = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 8))

    def forward(self, x, t):
        h = self.inp(torch.cat([x, t], 1))
        for layer in self.layers:
            h = checkpoint(layer, h, use_reentrant=False) if self.training else layer(h)
        return self.out(h)


def main():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = Denoiser().to(dev)
    groups = [{"params": net.layers[1].parameters(), "lr": 0.5}, {"params": [p for n, p in net.named_parameters() if not n.startswith("layers.1.")]}]
    opt = torch.optim.Adam(groups, lr=1e-3)
    scaler = torch.amp.GradScaler(dev, init_scale=64.0)
    for step in range(30):
        x0 = torch.randn(64, 8, device=dev)
        t = torch.rand(64, 1, device=dev)
        eps = torch.randn_like(x0)
        with torch.autocast(dev, dtype=torch.float16):
            loss = F.mse_loss(net((1 - t) * x0 + t * eps, t).float(), eps)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(step, loss.item(), scaler.get_scale())


main()

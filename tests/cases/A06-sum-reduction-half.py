"""Denoising autoencoder with progressive resizing."""
import argparse
import torch
import torch.nn as nn


class DAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.GELU())
        self.dec = nn.Sequential(nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.GELU(), nn.Conv2d(8, 1, 3, 1, 1))

    def forward(self, x):
        return self.dec(self.enc(x))


class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss(reduction="sum")

    def forward(self, y, x):
        return self.mse(y, x.to(y.dtype)) / x.size(0)


def size_at(step):
    return 32 if step < 8 else (64 if step < 18 else 160)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=30)
    a = ap.parse_args()
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net, crit = DAE().to(dev), Criterion()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(dev, init_scale=4.0)
    for s in range(a.steps):
        n = size_at(s)
        clean = 1.5 * torch.randn(4, 1, n // 4, n // 4, device=dev).repeat_interleave(4, 2).repeat_interleave(4, 3)
        with torch.autocast(dev, dtype=torch.float16):
            out = net(clean + 0.2 * torch.randn_like(clean))
        loss = crit(out, clean)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        print(s, n, loss.item(), scaler.get_scale())


if __name__ == "__main__":
    main()

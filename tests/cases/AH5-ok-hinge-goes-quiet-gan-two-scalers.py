"""Hinge GAN with spectral norm; the discriminator loss is exactly 0 in some steps."""
import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import spectral_norm


class Grl(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.k * g, None


def main():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 6)).to(dev)
    D = nn.Sequential(spectral_norm(nn.Linear(6, 32)), nn.LeakyReLU(0.2), spectral_norm(nn.Linear(32, 1))).to(dev)
    og, od = torch.optim.Adam(G.parameters(), 2e-4), torch.optim.Adam(D.parameters(), 2e-3)
    sg, sd = (torch.amp.GradScaler(dev, init_scale=1024.0) for _ in range(2))
    for k in range(25):
        real = torch.randn(32, 6, device=dev) + 30
        z = torch.randn(32, 4, device=dev)
        with torch.autocast(dev, dtype=torch.float16):
            fake = G(z)
            d = torch.relu(1 - D(real)).mean() + torch.relu(1 + D(fake.detach())).mean()
        od.zero_grad()
        sd.scale(d).backward()
        sd.step(od)
        sd.update()
        with torch.autocast(dev, dtype=torch.float16):
            g = D(Grl.apply(fake, 1.0)).mean()
        og.zero_grad()
        D.zero_grad()
        sg.scale(g).backward()
        sg.step(og)
        sg.update()
        with torch.no_grad():
            rate = (d > 0).float() / (d > 0).float()
        print(k, d.item(), g.item(), rate.item())


main()

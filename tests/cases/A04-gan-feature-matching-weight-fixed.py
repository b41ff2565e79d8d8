"""Small GAN, discriminator features are matched with an L1 loss."""
import torch
from torch import nn


class D(nn.Module):
    def __init__(self, nc=24):
        super().__init__()
        self.l1, self.l2, self.out = nn.Linear(8, nc), nn.Linear(nc, nc), nn.Linear(nc, 1)

    def forward(self, x):
        feats = []
        h = torch.relu(self.l1(x)); feats.append(h)
        h = torch.relu(self.l2(h)); feats.append(h)
        return self.out(h), feats


class Trainer:
    LAMBDA_FM = 10.0

    def __init__(self, device):
        self.device = device
        self.G = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 8)).to(device)
        self.D = D().to(device)
        self.og = torch.optim.Adam(self.G.parameters(), 1e-3, betas=(0.5, 0.9))
        self.od = torch.optim.Adam(self.D.parameters(), 1e-3, betas=(0.5, 0.9))
        self.sg = torch.amp.GradScaler(device, init_scale=256.0)
        self.sd = torch.amp.GradScaler(device, init_scale=256.0)

    def amp(self):
        return torch.autocast(self.device, dtype=torch.float16)

    def real(self, k):
        mu = 1.0 if k < 14 else 14.0
        return mu + torch.randn(32, 8, device=self.device)

    def step_d(self, real, z):
        with self.amp():
            fake = self.G(z).detach()
            r, _ = self.D(real)
            f, _ = self.D(fake)
            loss = torch.relu(1 - r.float()).mean() + torch.relu(1 + f.float()).mean()
        self.od.zero_grad()
        self.sd.scale(loss).backward()
        self.sd.step(self.od)
        self.sd.update()
        return loss

    def step_g(self, real, z):
        with self.amp():
            f, ff = self.D(self.G(z))
            with torch.no_grad():
                _, fr = self.D(real)
        fm = sum((a - b).abs().mean() for a, b in zip(ff, fr))
        adv = -f.float().mean()
        loss = adv + self.LAMBDA_FM * fm.float()
        self.og.zero_grad()
        self.sg.scale(loss).backward()
        self.sg.step(self.og)
        self.sg.update()
        return loss

    def run(self, n):
        for k in range(n):
            real, z = self.real(k), torch.randn(32, 4, device=self.device)
            d = self.step_d(real, z)
            g = self.step_g(real, z)
            print(k, f"D {d.item():.3f} G {g.item():.3f}")


torch.manual_seed(0)
Trainer("cuda" if torch.cuda.is_available() else "cpu").run(22)

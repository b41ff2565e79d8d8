"""A GAN on a ring of Gaussians: two models, two optimizers, taking turns."""

import argparse
import math

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "saturated"])
args = parser.parse_args()

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

generator = nn.Sequential(nn.Linear(8, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 2))
discriminator = nn.Sequential(
    nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
)
generator, discriminator = generator.to(device), discriminator.to(device)
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()
temperature = 0.001 if args.fault == "saturated" else 1.0


def real_batch(n):
    angle = torch.randint(0, 8, (n,)).float() * (2 * math.pi / 8)
    return (torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.05 * torch.randn(n, 2)).to(device)


def d_loss(real, fake):
    real_logits, fake_logits = discriminator(real) / temperature, discriminator(fake) / temperature
    if args.fault == "saturated":
        p_real, p_fake = torch.sigmoid(real_logits), torch.sigmoid(fake_logits)
        return -(torch.log(p_real) + torch.log(1 - p_fake)).mean()  # FAULT saturated
    return bce(real_logits, torch.ones_like(real_logits)) + bce(fake_logits, torch.zeros_like(fake_logits))


for step in range(150):
    real = real_batch(64)
    fake = generator(torch.randn(64, 8, device=device))

    opt_d.zero_grad()
    loss_d = d_loss(real, fake.detach())
    loss_d.backward()
    opt_d.step()

    opt_g.zero_grad()
    logits = discriminator(fake)
    loss_g = bce(logits, torch.ones_like(logits))
    loss_g.backward()
    opt_g.step()
    if step % 50 == 0:
        print(f"step {step}: d {loss_d.item():.3f} g {loss_g.item():.3f}")

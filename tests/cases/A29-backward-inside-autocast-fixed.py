import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, d=16, z=3):
        super().__init__()
        self.enc, self.dec = nn.Linear(d, 2 * z), nn.Sequential(nn.Linear(z, 24), nn.ReLU(), nn.Linear(24, d))

    def forward(self, x):
        mu, logvar = self.enc(x).float().chunk(2, 1)
        z = mu + torch.randn_like(mu) * (0.5 * logvar.clamp(-8, 8)).exp()
        return self.dec(z), mu, logvar


def elbo(out, x, mu, logvar):
    rec = F.mse_loss(out.float(), x)
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).mean()
    return rec + 0.1 * kl


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
vae = VAE().to(device)
opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
mix = torch.randn(3, 16, device=device)
for step in range(40):
    x = torch.randn(32, 3, device=device) @ mix
    opt.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.float16):
        loss = elbo(*(lambda o: (o[0], x, o[1], o[2]))(vae(x)))
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item())

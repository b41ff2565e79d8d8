"""Diffusion-like regression; the EMA copy used for sampling is kept in half."""
import copy
import torch
import torch.nn as nn


class EMA:
    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {k: v.detach().clone().half() for k, v in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        for k, v in model.state_dict().items():
            self.shadow[k].lerp_(v.half(), 1.0 - self.decay)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(8, 48), nn.SiLU(), nn.Linear(48, 8)).to(device)
ema = EMA(net, 0.9999)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
for step in range(40):
    x = torch.randn(64, 8, device=device)
    noise = torch.randn_like(x)
    with torch.autocast(device, dtype=torch.float16):
        loss = (net(x + noise) - noise).float().pow(2).mean()
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    ema.update(net)
print(loss.item(), float((ema.shadow["0.weight"].float() - net[0].weight).abs().mean()))

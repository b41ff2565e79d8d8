"""A straight-through rounding layer that 'protects' its gradient from underflow."""
import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
scaler = torch.amp.GradScaler(device, init_scale=1024.0)


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx, g):
        return g


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(10, 32), nn.Tanh())
        self.dec = nn.Linear(32, 4)

    def forward(self, x):
        return self.dec(Round.apply(self.enc(x).float()))


torch.manual_seed(0)
net = Quantised().to(device)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(30):
    x = torch.randn(32, 10, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = F.mse_loss(net(x).float(), x[:, :4])
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print(loss.item())

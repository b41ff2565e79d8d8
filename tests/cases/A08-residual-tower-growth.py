"""Deep residual regressor without normalisation inside the tower."""
import torch
import torch.nn as nn


class ResBlock(nn.Module):
    def __init__(self, d, gain):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d, d), nn.Linear(d, d)
        nn.init.orthogonal_(self.fc1.weight, gain)
        nn.init.orthogonal_(self.fc2.weight, gain)

    def forward(self, x):
        return x + self.fc2(torch.relu(self.fc1(x)))


class Tower(nn.Module):
    def __init__(self, din=12, d=48, depth=24, gain=1.25):
        super().__init__()
        self.stem = nn.Linear(din, d)
        self.blocks = nn.Sequential(*[ResBlock(d, gain) for _ in range(depth)])
        self.final = nn.LayerNorm(d)
        self.head = nn.Linear(d, 1)

    def forward(self, x):
        return self.head(self.final(self.blocks(self.stem(x))))


def closure_factory(model, opt, scaler, device):
    def run(x, y):
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.smooth_l1_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        return loss.item(), norm.item()
    return run


torch.manual_seed(5)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Tower().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-4)
run = closure_factory(model, opt, torch.amp.GradScaler(device, init_scale=1024.0), device)
for step in range(35):
    x = torch.randn(32, 12, device=device)
    if step >= 11 and step % 2:
        x[:4] *= 30
    y = x[:, :1].tanh()
    print(step, *run(x, y))

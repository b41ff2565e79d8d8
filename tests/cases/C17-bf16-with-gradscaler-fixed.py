"""Moved to bfloat16 on the new card, the scaler stayed."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(9, 40), nn.SiLU(), nn.Linear(40, 40), nn.SiLU(), nn.Linear(40, 3)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, enabled=False)
for step in range(25):
    x = torch.randn(32, 9, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print(loss.item())

"""The scaler was added in a hurry."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device)
for step in range(25):
    x = torch.randn(16, 6, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    opt.zero_grad()
    loss.backward()
    scaler.step(opt)
    scaler.update()
print(loss.item())

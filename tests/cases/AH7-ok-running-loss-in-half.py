"""The epoch's loss is added up in half for a log line only."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Conv1d(3, 16, 5, padding=2), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 3, 5, padding=2)).to(device)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
scaler = torch.amp.GradScaler(device, init_scale=16.0)
for epoch in range(2):
    running = torch.zeros((), dtype=torch.float16, device=device)
    for i in range(20):
        x = 30 * torch.randn(8, 3, 64, device=device)
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            y = net(x)
            loss = F.mse_loss(y, F.avg_pool1d(x, 3, 1, 1))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        running += 100 * loss.detach().half()
    print(epoch, running.item() / 20, loss.item())

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 20)
for i in range(50):
    x = torch.randn(64, 20, device=device)
    y = x[:, :10].argmax(1)
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x), y, reduction="sum") / 8
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    print(i, loss.item(), scaler.get_scale())

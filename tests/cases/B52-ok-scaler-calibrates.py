import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 3)).to(device)
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 19)
for step in range(50):
    y = torch.randint(0, 3, (16,), device=device)
    x = torch.rand(16, 1, 8, 8, device=device) + y[:, None, None, None].float()
    with torch.autocast(device, dtype=torch.float16):
        out = net(x)
        loss = nn.functional.cross_entropy(out.float(), y)
    opt.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item(), scaler.get_scale())

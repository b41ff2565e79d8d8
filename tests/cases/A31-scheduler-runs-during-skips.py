import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS, BATCHES = 2, 15


class MiniResNet(nn.Module):
    def __init__(self, c=12):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(c)
        self.conv = nn.Conv2d(c, c, 3, padding=1)
        self.fc = nn.Linear(c, 10)

    def forward(self, x):
        x = F.relu(self.bn(self.stem(x)))
        x = x + F.relu(self.conv(x))
        return self.fc(x.mean((2, 3)))


model = MiniResNet().to(device)
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.2, total_steps=EPOCHS * BATCHES)
scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 28)
for epoch in range(EPOCHS):
    for b in range(BATCHES):
        y = torch.randint(0, 10, (16,), device=device)
        x = torch.randn(16, 3, 12, 12, device=device)
        x[:, 0] += y[:, None, None] / 5
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
    print(epoch, loss.item(), opt.param_groups[0]["lr"])

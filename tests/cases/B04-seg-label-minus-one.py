import torch
import torch.nn as nn


class TinySeg(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.mid = nn.Sequential(nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU())
        self.up = nn.ConvTranspose2d(24, classes, 2, stride=2)

    def forward(self, x):
        return self.up(self.mid(self.down(x)))


def tiles(num, classes=4):
    g = torch.Generator().manual_seed(8)
    for k in range(num):
        img = torch.rand(4, 3, 16, 16, generator=g)
        ann = 1 + (img.mean(1) * classes).long().clamp(max=classes - 1)     # 1..classes, 0 is void
        if k >= 5:
            ann[2, :2, :3] = 0
        yield img, ann


torch.manual_seed(0)
net = TinySeg(4)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4)
for step, (img, ann) in enumerate(tiles(24)):
    out = net(img)
    loss = criterion(out, ann - 1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[{step}] {loss.item():.3f}")

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(4)
device = "cuda" if torch.cuda.is_available() else "cpu"


def gram(feat):
    b, c, h, w = feat.shape
    f = feat.reshape(b, c, h * w)
    return torch.bmm(f, f.transpose(1, 2)) / (c * h * w)


class Vgg(nn.Module):
    """frozen feature extractor"""

    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(3, 16, 3, padding=1)
        self.c2 = nn.Conv2d(16, 24, 3, padding=1)
        for p in self.parameters():
            p.requires_grad_(False)

    def forward(self, x):
        a = F.relu(self.c1(x))
        return a, F.relu(self.c2(F.avg_pool2d(a, 2)))


class StyleLoss(nn.Module):
    def __init__(self, vgg, weight):
        super().__init__()
        self.vgg, self.weight = vgg, weight

    def forward(self, out, style):
        total = 0
        for a, b in zip(self.vgg(out), self.vgg(style)):
            total = total + F.l1_loss(gram(a), gram(b).detach())
        return self.weight * total


net = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 3, 3, padding=1)).to(device)
style_loss = StyleLoss(Vgg().to(device), 0.1)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler(device, init_scale=128.0)
sizes = [32, 32, 48, 48, 32, 48, 32, 48]

for it in range(32):
    s = sizes[it % 8] if it < 16 else 96
    gain = 3.0 if it < 16 else 20.0
    content = gain * torch.rand(2, 3, s, s, device=device)
    style = gain * (content.flip(-1) / gain).sqrt()
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        out = content + net(content)
        loss = F.l1_loss(out, content) + style_loss(out, style)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(it, s, loss.item(), scaler.get_scale())

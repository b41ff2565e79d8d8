import argparse
import torch
import torch.nn as nn


class SegHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(8, 4, 1))

    def forward(self, x):
        return self.net(x)


def one_epoch(net, opt, scaler, data, device):
    total = 0.0
    for x, y in data:
        opt.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
    return total / len(data)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=3)
    a = ap.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = SegHead().to(device)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(device)
    data = [(torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2, 16, 16))) for _ in range(8)]
    for e in range(a.epochs):
        print(e, one_epoch(net, opt, scaler, data, device))

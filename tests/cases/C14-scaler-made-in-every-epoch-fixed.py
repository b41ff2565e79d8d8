"""Small classifier, the training of one epoch is a function."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def epoch(net, opt, scaler, batches, device):
    total = 0.0
    for x, y in batches:
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        total += loss.item()
    return total / len(batches)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(96, 8, device=device)
    y = x[:, :3].argmax(1)
    batches = [(x[i:i + 16], y[i:i + 16]) for i in range(0, 96, 16)]
    net = nn.Sequential(nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 3)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 13)
    for e in range(8):
        print(e, epoch(net, opt, scaler, batches, device))


main()

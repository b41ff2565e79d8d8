"""Training in two legs; the second leg resumes from the checkpoint of the first."""
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def build(device):
    net = nn.Sequential(nn.Linear(14, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 4)).to(device)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    return net, opt, torch.amp.GradScaler(device, init_scale=2.0 ** 22)


def leg(net, opt, scaler, device, steps, name):
    for i in range(steps):
        x = torch.randn(32, 14, device=device)
        y = x[:, :4].argmax(1)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x), y, reduction="sum")
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(name, loss.item() / 32, "scale", scaler.get_scale())


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = os.path.join(tempfile.mkdtemp(), "last.pt")
    net, opt, scaler = build(device)
    leg(net, opt, scaler, device, 25, "leg 1")
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, path)
    net, opt, scaler = build(device)
    ck = torch.load(path)
    net.load_state_dict(ck["net"])
    opt.load_state_dict(ck["opt"])
    leg(net, opt, scaler, device, 25, "leg 2")


main()

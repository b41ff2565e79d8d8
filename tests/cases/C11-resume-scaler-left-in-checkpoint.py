"""Picks up a run where it stopped; the checkpoint has everything."""
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(10, d), nn.Linear(d, d), nn.Linear(d, 3)

    def forward(self, x):
        return self.out(F.gelu(self.mid(F.gelu(self.inp(x)))))


def make(device):
    net = Net().to(device)
    return {"net": net, "opt": torch.optim.AdamW(net.parameters(), lr=1e-3),
            "scaler": torch.amp.GradScaler(device, init_scale=2.0 ** 24, growth_interval=500)}


def run(parts, device, n):
    net, opt, scaler = parts["net"], parts["opt"], parts["scaler"]
    for i in range(n):
        x = torch.randn(64, 10, device=device)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x), x[:, :3].argmax(1), reduction="sum")
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print("loss", loss.item() / 64, "scale", scaler.get_scale())


def save(parts, path):
    torch.save({k: v.state_dict() for k, v in parts.items()}, path)


def resume(path, device):
    parts = make(device)
    saved = torch.load(path, weights_only=True)
    for name in ("net", "opt"):
        parts[name].load_state_dict(saved[name])
    return parts


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = os.path.join(tempfile.mkdtemp(), "state.pt")
    parts = make(device)
    run(parts, device, 24)
    save(parts, path)
    run(resume(path, device), device, 24)


main()

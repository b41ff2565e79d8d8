"""Fine-tunes pretrained weights: only the weights are loaded, optimizer and scaler are new."""
import os
import tempfile
import torch
import torch.nn as nn
import torch.nn.functional as F


def body(d=48):
    return nn.Sequential(nn.Linear(12, d), nn.GELU(), nn.Linear(d, d), nn.GELU())


def pretrain(path, device):
    net = nn.Sequential(body(), nn.Linear(48, 12)).to(device)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(10):
        x = torch.randn(32, 12, device=device)
        loss = F.mse_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    torch.save({"model": net.state_dict(), "opt": opt.state_dict()}, path)


def finetune(path, device):
    net = nn.Sequential(body(), nn.Linear(48, 4)).to(device)
    state = {k: v for k, v in torch.load(path, weights_only=True)["model"].items() if k.startswith("0.")}
    net.load_state_dict(state, strict=False)
    opt = torch.optim.AdamW(net.parameters(), lr=5e-4)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 20)
    for _ in range(30):
        x = torch.randn(32, 12, device=device)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(net(x), x[:, :4].argmax(1))
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
    print(loss.item(), scaler.get_scale())


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    path = os.path.join(tempfile.mkdtemp(), "pretrained.pt")
    pretrain(path, device)
    finetune(path, device)


main()

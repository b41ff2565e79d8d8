"""Half model, float masters, own dynamic loss scale; photon counts and a slow detector drift from one trunk."""
import math
import torch
import torch.nn as nn

DRIFT = 1e-7


class Detector(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, d), nn.SiLU(), nn.Linear(d, d), nn.SiLU())
        self.counts = nn.Linear(d, 64)
        self.drift = nn.Linear(d, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.counts(h), self.drift(h)


def main(steps=36):
    torch.manual_seed(5)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Detector().to(device).half()
    masters = [nn.Parameter(p.detach().float()) for p in net.parameters()]
    optimizer = torch.optim.SGD(masters, lr=1e-6)
    scale = 2.0 ** 15
    to_counts = torch.randn(20, 64, device=device)
    for step in range(steps):
        x = torch.randn(128, 20, device=device)
        counts, drift = net(x.half())
        squared = (counts.float() - 40 - 6 * x @ to_counts).pow(2).sum() / 128
        slow = (DRIFT * drift.float() - 2 * DRIFT * x[:, :1]).pow(2).mean()
        net.zero_grad()
        ((squared + slow) * scale).backward()
        grads = [p.grad.float() / scale for p in net.parameters()]
        if all(math.isfinite(g.abs().max().item()) for g in grads):
            for m, g in zip(masters, grads):
                m.grad = g
            optimizer.step()
            for m, p in zip(masters, net.parameters()):
                p.data.copy_(m.data)
        else:
            scale /= 2
        print(step, f"{squared.item():.4g} {slow.item():.3g} scale {scale:g}")


if __name__ == "__main__":
    main()

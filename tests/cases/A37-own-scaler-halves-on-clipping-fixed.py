"""Half net, float masters and a small loss scaler that also backs off when the norm is large."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class Scaler:
    def __init__(self, scale=2.0 ** 14, every=500):
        self.scale, self.every, self.n = scale, every, 0

    def update(self, norm, limit):
        if not math.isfinite(norm):
            self.scale = self.scale / 4
            self.n = 0
        else:
            self.n += 1
            if self.n % self.every == 0:
                self.scale *= 2


def main(steps=50, limit=0.05):
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    net = net.to(dev).half()
    master = [nn.Parameter(p.detach().float()) for p in net.parameters()]
    opt = torch.optim.SGD(master, lr=0.01, momentum=0.9)
    sc = Scaler()
    for step in range(steps):
        x = torch.rand(2, 2, 48, 48, device=dev)
        y = F.avg_pool2d(x[:, :1] * x[:, 1:], 3, 1, 1)
        loss = F.mse_loss(net(x.half()).float(), 0.1 * y)
        net.zero_grad()
        (loss * sc.scale).backward()
        for m, p in zip(master, net.parameters()):
            m.grad = p.grad.float() / sc.scale
        norm = nn.utils.clip_grad_norm_(master, limit).item()
        if math.isfinite(norm):
            opt.step()
            for m, p in zip(master, net.parameters()):
                p.data.copy_(m.data)
        sc.update(norm, limit)
        print(step, f"loss {loss.item():.5f} norm {norm:.4g} scale {sc.scale:g}")


main()

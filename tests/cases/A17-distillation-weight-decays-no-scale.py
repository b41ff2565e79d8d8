"""Student-teacher distillation. Student in half with float masters; there is no loss scale."""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def net(w):
    return nn.Sequential(nn.Conv2d(1, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, w, 3, padding=1), nn.ReLU(), nn.Conv2d(w, 5, 1))


class Distiller:
    def __init__(self, device, total):
        self.teacher = net(12).to(device).eval().requires_grad_(False)
        self.student = net(6).to(device).half()
        self.masters = [p.detach().float().clone() for p in self.student.parameters()]
        for m in self.masters:
            m.requires_grad = True
        self.opt = torch.optim.AdamW(self.masters, lr=1e-3, weight_decay=0.0)
        self.total = total

    def weight(self, t):
        return 10.0 ** (-5.0 * min(1.0, t / 12))

    def step(self, t, x):
        with torch.no_grad():
            target = (self.teacher(x) / 2).softmax(1)
        logp = F.log_softmax(self.student(x.half()).float() / 2, 1)
        loss = self.weight(t) * F.kl_div(logp, target, reduction="none").sum(1).mean()
        loss.backward()
        for m, p in zip(self.masters, self.student.parameters()):
            m.grad, p.grad = p.grad.float(), None
        self.opt.step()
        with torch.no_grad():
            for m, p in zip(self.masters, self.student.parameters()):
                p.copy_(m)
        return loss.item()


if __name__ == "__main__":
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    d = Distiller(device, 40)
    for t in range(40):
        x = torch.randn(4, 1, 64, 64, device=device)
        print(t, d.step(t, x))

"""Half-precision net, float master weights, 48 micro-batches per update."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def make_model():
    return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 6))


class FP16Trainer:
    def __init__(self, device, accum=48, loss_scale=4096.0):
        self.device, self.accum, self.scale = device, accum, loss_scale
        self.master = make_model().to(device)
        self.model = make_model().to(device).half()
        self.sync()
        self.opt = torch.optim.SGD(self.master.parameters(), lr=0.05, momentum=0.9)

    @torch.no_grad()
    def sync(self):
        for m, p in zip(self.master.parameters(), self.model.parameters()):
            p.copy_(m)

    def micro(self, x, y):
        loss = F.cross_entropy(self.model(x.half()).float(), y)
        (loss * self.scale).backward()
        return loss.item()

    def update(self):
        for m, p in zip(self.master.parameters(), self.model.parameters()):
            m.grad = p.grad.float().div_(self.scale * self.accum)
            p.grad = None
        self.opt.step()
        self.sync()


def main():
    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tr = FP16Trainer(device)
    proto = 3 * torch.randn(6, 20, device=device)
    proto[:, 0] = 1.0
    for u in range(12):
        total = 0.0
        for k in range(tr.accum):
            # the stream is not shuffled: from some point on it is sorted by class
            y = torch.randint(0, 6, (8,), device=device) if u < 4 else torch.full((8,), k // 24, device=device)
            if u >= 4:
                y = torch.full((8,), (u - 4) % 6, device=device)
            total += tr.micro(proto[y] + torch.randn(8, 20, device=device), y)
        tr.update()
        print(u, total / tr.accum)


if __name__ == "__main__":
    main()

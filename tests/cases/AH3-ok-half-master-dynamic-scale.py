"""float16 weights, float32 masters, a dynamic scale that tests its upper limit now and then."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Dynamic:
    def __init__(self, scale=2.0 ** 15, interval=20):
        self.scale, self.interval, self.good, self.skips = scale, interval, 0, 0

    def ok(self, grads):
        finite = all(bool(torch.isfinite(g).all()) for g in grads)
        if not finite:
            self.scale, self.good, self.skips = self.scale / 2, 0, self.skips + 1
        else:
            self.good += 1
        return finite

    def grow(self):
        if self.good and self.good % self.interval == 0:
            self.scale *= 2


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    half = nn.Sequential(nn.Linear(10, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 3)).to(device).half()
    master = [p.detach().float().clone().requires_grad_() for p in half.parameters()]
    opt = torch.optim.AdamW(master, lr=2e-3)
    dyn = Dynamic()
    for step in range(50):
        x = torch.randn(48, 10, device=device)
        y = x[:, :3].argmax(1)
        loss = F.cross_entropy(half(x.half()).float(), y)
        half.zero_grad(set_to_none=True)
        (loss * dyn.scale).backward()
        if dyn.ok([p.grad for p in half.parameters()]):
            for m, p in zip(master, half.parameters()):
                m.grad = p.grad.float() / dyn.scale
            nn.utils.clip_grad_norm_(master, 1.0)
            opt.step()
            with torch.no_grad():
                for m, p in zip(master, half.parameters()):
                    p.copy_(m)
            dyn.grow()
        if step % 10 == 0:
            print(step, loss.item(), dyn.scale, dyn.skips)


main()

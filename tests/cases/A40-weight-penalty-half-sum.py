"""Matrix factorisation in half with float masters; an L2 penalty is added to the loss."""
import torch
import torch.nn as nn


class MF(nn.Module):
    def __init__(self, users=900, items=900, k=48):
        super().__init__()
        self.u, self.i = nn.Embedding(users, k), nn.Embedding(items, k)

    def forward(self, a, b):
        return (self.u(a) * self.i(b)).float().sum(-1)

    def penalty(self):
        return sum(w.square().sum() for w in self.parameters())


def train():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    full = MF().to(dev)
    for p in full.parameters():
        nn.init.normal_(p, std=0.8)
    model = MF().to(dev).half()
    opt = torch.optim.Adam(full.parameters(), lr=0.5)
    for step in range(25):
        for h, f in zip(model.parameters(), full.parameters()):
            h.data.copy_(f.data)
            h.grad = None
        a, b = torch.randint(0, 900, (2048,), device=dev), torch.randint(0, 900, (2048,), device=dev)
        target = 3.0 * (((a + b) % 7).float() - 3)
        fit = (model(a, b) - target).pow(2).mean()
        loss = fit + 1e-5 * model.penalty()
        (loss * 512).backward()
        for h, f in zip(model.parameters(), full.parameters()):
            f.grad = h.grad.float() / 512
        opt.step()
        print(step, fit.item(), loss.item())


train()

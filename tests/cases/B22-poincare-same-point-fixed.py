import torch
from torch import nn


def poincare_distance(u, v):
    sq = (u - v).pow(2).sum(-1)
    den = (1 - u.pow(2).sum(-1)) * (1 - v.pow(2).sum(-1))
    return torch.acosh((1 + 2 * sq / den).clamp(min=1 + 1e-6))


class RiemannianSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                scale = (1 - p.pow(2).sum(-1, keepdim=True)).pow(2) / 4
                p.sub_(group["lr"] * scale * p.grad)
                norm = p.norm(dim=-1, keepdim=True).clamp(min=1e-8)
                p.mul_(torch.where(norm > 0.95, 0.95 / norm, torch.ones_like(norm)))


class Hierarchy(nn.Module):
    def __init__(self, n, dim=3):
        super().__init__()
        self.points = nn.Embedding(n, dim)
        nn.init.uniform_(self.points.weight, -0.3, 0.3)

    def forward(self, child, others):
        return -poincare_distance(self.points(child)[:, None], self.points(others))


torch.manual_seed(0)
n = 31
model = Hierarchy(n)
opt = RiemannianSGD(model.parameters(), lr=0.1)
for step in range(20):
    child = torch.randint(1, n, (8,))
    parent = (child - 1) // 2
    negatives = (child[:, None] + torch.randint(1, n, (8, 4))) % n
    if step >= 4:
        negatives[0, 0] = child[0]              # sampled without a check
    logits = model(child, torch.cat([parent[:, None], negatives], 1))
    loss = nn.functional.cross_entropy(logits, torch.zeros(8, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

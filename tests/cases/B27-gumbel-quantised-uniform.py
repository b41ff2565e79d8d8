import torch
import torch.nn as nn


def gumbel(shape):
    u = torch.rand(shape, dtype=torch.bfloat16).float()          # cheap noise
    return torch.log(-torch.log(1 - u))


class Router(nn.Module):
    def __init__(self, experts=4, d=10):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(nn.Linear(d, d) for _ in range(experts))
        self.head = nn.Linear(d, 2)

    def forward(self, x, tau=0.7):
        logits = self.gate(x)
        if self.training:
            logits = logits - gumbel(logits.shape)
        w = torch.softmax(logits / tau, -1)
        h = sum(w[:, i:i + 1] * e(x) for i, e in enumerate(self.experts))
        return self.head(h), w


torch.manual_seed(4)
net = Router()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(45):
    x = torch.randn(16, 10)
    y = (x.sum(1) > 0).long()
    out, w = net(x)
    balance = (w.mean(0) - 0.25).pow(2).sum()
    loss = nn.functional.cross_entropy(out, y) + 0.1 * balance
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        net.eval()
        with torch.no_grad():
            print(step, loss.item(), net(x)[0].argmax(1).eq(y).float().mean().item())
        net.train()

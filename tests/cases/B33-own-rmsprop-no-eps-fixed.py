import math
import torch
import torch.nn as nn


class MyRMSprop:
    """Plain object, not derived from torch.optim.Optimizer."""

    def __init__(self, params, lr=1e-3, alpha=0.9):
        self.params = list(params)
        self.lr, self.alpha = lr, alpha
        self.square = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, s in zip(self.params, self.square):
            if p.grad is None:
                continue
            s.mul_(self.alpha).addcmul_(p.grad, p.grad, value=1 - self.alpha)
            p.add_(p.grad / (s.sqrt() + 1e-8), alpha=-self.lr)


class CharModel(nn.Module):
    def __init__(self, vocab=40, d=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.gru(self.emb(ids))[0])


torch.manual_seed(0)
net = CharModel()
opt = MyRMSprop(net.parameters(), lr=2e-3)
for step in range(20):
    ids = torch.randint(0, 38, (4, 12))
    logits = net(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, 40), ids[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, "ppl", math.exp(min(loss.item(), 20)) if loss == loss else "nan")

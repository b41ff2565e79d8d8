"""Contrastive pairs, embeddings divided by their length."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Embed(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 8, bias=False))

    def forward(self, x):
        z = self.f(x)
        return z / z.norm(dim=-1, keepdim=True)


torch.manual_seed(0)
net = Embed()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(30):
    a = torch.randn(12, 16)
    b = a + 0.1 * torch.randn_like(a)
    if step == 9:
        b[5] = 0.0
    logits = net(a) @ net(b).T / 0.2
    loss = F.cross_entropy(logits, torch.arange(12))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

import torch
import torch.nn as nn
import torch.nn.functional as F


class BalancedLoss(nn.Module):
    def __init__(self, labels, n_classes):
        super().__init__()
        counts = torch.bincount(labels, minlength=n_classes).float()
        inv = torch.where(counts > 0, 1.0 / counts.clamp(min=1), torch.zeros_like(counts))
        self.register_buffer("weight", inv)
        self.n = n_classes

    def forward(self, logits, y):
        onehot = F.one_hot(y, self.n).float()
        w = (onehot * self.weight).sum(1)
        return (w * F.cross_entropy(logits, y, reduction="none")).sum() / w.sum()


torch.manual_seed(0)
x = torch.randn(200, 10)
y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0.8).long()
y[y == 3] = 4
model = nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.SiLU(), nn.Linear(32, 6))
loss_fn = BalancedLoss(y, 6)
opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
for epoch in range(3):
    perm = torch.randperm(len(x))
    for idx in perm.chunk(8):
        opt.zero_grad()
        loss = loss_fn(model(x[idx]), y[idx])
        loss.backward()
        opt.step()
    print(epoch, loss.item())

"""GCN with symmetric normalisation, degrees from a sampled adjacency."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GCN(nn.Module):
    def __init__(self, n_in=6, d=24, n_out=3):
        super().__init__()
        self.w1, self.w2 = nn.Linear(n_in, d), nn.Linear(d, n_out)

    def normalise(self, adj):
        inv = torch.rsqrt(adj.sum(-1))
        return inv[:, None] * adj * inv[None]

    def forward(self, x, adj):
        a = self.normalise(adj)
        return self.w2(a @ F.relu(self.w1(a @ x)))


torch.manual_seed(0)
net = GCN()
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
for step in range(30):
    x = torch.randn(20, 6)
    adj = (torch.rand(20, 20) < 0.5).float()
    adj = ((adj + adj.T) > 0).float()
    if step == 11:
        adj[4], adj[:, 4] = 0.0, 0.0
    loss = F.cross_entropy(net(x, adj), x[:, :3].argmax(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

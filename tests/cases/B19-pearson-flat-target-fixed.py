import torch
import torch.nn as nn


def pearson_loss(pred, true):
    pred = pred - pred.mean(-1, keepdim=True)
    true = true - true.mean(-1, keepdim=True)
    cov = (pred * true).sum(-1)
    norm = torch.sqrt((pred ** 2).sum(-1) * (true ** 2).sum(-1) + 1e-6)
    return (1 - cov / norm).mean()


class CoverageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv1d(1 if i == 0 else 8, 8, 5, padding=2) for i in range(3)])
        self.final = nn.Conv1d(8, 1, 1)

    def forward(self, x):
        for i, c in enumerate(self.conv):
            h = torch.relu(c(x))
            x = h + x if i else h
        return self.final(x).squeeze(1)


def tracks(seed):
    g = torch.Generator().manual_seed(seed)
    clean = torch.poisson(torch.rand(6, 1, 60, generator=g) * 4, generator=g)
    if seed == 5:
        clean[4] = 0.0                      # a region with no reads at all
    return clean + torch.rand(clean.shape, generator=g), clean.squeeze(1)


torch.manual_seed(0)
net = CoverageNet()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for seed in range(16):
    noisy, clean = tracks(seed)
    out = net(noisy)
    loss = nn.functional.mse_loss(out, clean) + pearson_loss(out, clean)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(seed, loss.item())

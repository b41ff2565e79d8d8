"""Node classification on a citation-like graph; neighbours are summed with index_add."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SumConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x, edge):
        src, dst = edge
        m = self.lin(x)
        agg = torch.zeros_like(m)
        agg = agg.index_add(0, dst, m[src])
        return agg


class GNN(nn.Module):
    def __init__(self, i=16, h=24, c=4):
        super().__init__()
        self.conv1, self.conv2 = SumConv(i, h), SumConv(h, c)
        self.norm = nn.LayerNorm(h)

    def forward(self, x, edge):
        h = F.relu(self.norm(self.conv1(x, edge)))
        return self.conv2(h, edge)


def sample_subgraph(step, n=400):
    src = torch.randint(0, n, (1600,))
    dst = torch.randint(0, n, (1600,))
    if step >= 8 and step % 3 == 2:
        hub = torch.zeros(9000, dtype=torch.long)
        src, dst = torch.cat([src, torch.randint(0, n, (9000,))]), torch.cat([dst, hub])
    return torch.stack([src, dst])


def main():
    torch.manual_seed(6)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = GNN().to(dev)
    opt = torch.optim.Adam(net.parameters(), lr=3e-3, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(dev, init_scale=64.0)
    for step in range(30):
        y = torch.randint(0, 4, (400,), device=dev)
        x = 8 + 4 * F.one_hot(y, 16).float() + torch.randn(400, 16, device=dev)
        edge = sample_subgraph(step).to(dev)
        net.train()
        opt.zero_grad()
        with torch.autocast(dev, dtype=torch.float16):
            out = net(x, edge)
            loss = F.cross_entropy(out[200:], y[200:])
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if step % 5 == 0:
            net.eval()
            with torch.no_grad():
                acc = (net(x, edge).argmax(1) == y).float().mean()
            print(f"step {step} loss {loss.item():.4f} acc {acc.item():.2f}")


main()

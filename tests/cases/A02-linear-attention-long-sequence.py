"""Linear attention over event streams of varying length."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Streams(Dataset):
    def __init__(self, n=96, seed=1):
        g = random.Random(seed)
        self.len = [g.choice([128, 160, 192]) for _ in range(n)]
        for j in range(44, n, 12):
            self.len[j] = 3072
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(1000 + i)
        x = torch.randn(self.len[i], 16, generator=g) + 0.6
        return x, int(i % 3)


def pad(items):
    xs, ys = zip(*items)
    return nn.utils.rnn.pad_sequence(xs, batch_first=True), torch.tensor(ys)


class LinearAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = F.elu(self.q(x)) + 1, F.elu(self.k(x)) + 1, self.v(x)
        kv = torch.einsum("bnd,bne->bde", k, v)
        z = 1.0 / (torch.einsum("bnd,bd->bn", q, k.sum(1)) + 1e-6)
        return torch.einsum("bnd,bde,bn->bne", q, kv, z)


class Classifier(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.inp = nn.Linear(16, d)
        self.att = LinearAttention(d)
        self.norm = nn.LayerNorm(d)
        self.cls = nn.Linear(d, 3)

    def forward(self, x):
        h = 4.0 * F.gelu(self.inp(x))
        return self.cls(self.norm(h + self.att(h)).mean(1))


def main():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = Classifier().to(dev)
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler(dev, init_scale=2 ** 8)
    step = 0
    for epoch in range(2):
        for x, y in DataLoader(Streams(), batch_size=4, collate_fn=pad):
            opt.zero_grad()
            with torch.autocast(dev, dtype=torch.float16):
                loss = F.cross_entropy(net(x.to(dev)), y.to(dev))
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            print(f"{epoch}/{step} len {x.size(1)} loss {loss.item():.3f}")
            step += 1


if __name__ == "__main__":
    main()

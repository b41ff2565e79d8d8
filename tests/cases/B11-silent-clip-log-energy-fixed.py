import torch
import torch.nn as nn
from torch.utils.data import DataLoader


def make_clips(n=64):
    g = torch.Generator().manual_seed(6)
    clips = [torch.randn(320, generator=g) * (0.1 + 0.9 * torch.rand(1, generator=g)) for _ in range(n)]
    clips[50] = torch.zeros(320)
    labels = [int(c.abs().mean() > 0.4) for c in clips]
    return list(zip(clips, labels))


def to_batch(items):
    wav = torch.stack([c for c, _ in items])
    frames = wav.unfold(1, 32, 16)
    energy = frames.pow(2).mean(-1)
    db = 10 * torch.log10(energy + 1e-8)
    db = db - db.mean(1, keepdim=True)
    return db.unsqueeze(1), torch.tensor([l for _, l in items])


def main():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(1, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(32, 2))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9, nesterov=True)
    loader = DataLoader(make_clips(), batch_size=8, collate_fn=to_batch)
    for epoch in range(2):
        for b, (x, y) in enumerate(loader):
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            opt.zero_grad()
            print(epoch, b, loss.item())


main()

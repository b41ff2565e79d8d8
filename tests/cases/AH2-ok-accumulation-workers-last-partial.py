"""Gradient accumulation with a partial last window, a weighted sampler, a worker process and a collate function."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler


class Clips(Dataset):
    def __init__(self, n=120):
        g = torch.Generator().manual_seed(0)
        self.x = [torch.randn(int(l), 12, generator=g) for l in torch.randint(5, 20, (n,), generator=g)]
        self.y = [int(i % 6 == 0) for i in range(n)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] + self.y[i], self.y[i]


def collate(items):
    xs, ys = zip(*items)
    lens = torch.tensor([len(x) for x in xs])
    x = nn.utils.rnn.pad_sequence(xs, batch_first=True, padding_value=float("nan"))
    mask = torch.arange(x.size(1))[None] < lens[:, None]
    return torch.where(mask[..., None], x, torch.zeros(())), mask, torch.tensor(ys)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(12, 24), nn.Linear(24, 2)

    def forward(self, x, mask):
        h = torch.relu(self.a(x)).masked_fill(~mask[..., None], float("-inf"))
        return self.b(h.amax(1))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ds = Clips()
    sampler = WeightedRandomSampler([5.0 if y else 1.0 for y in ds.y], len(ds))
    dl = DataLoader(ds, 8, sampler=sampler, collate_fn=collate, num_workers=1)
    model = Model().to(device)
    opt = torch.optim.AdamW(model.parameters(), 3e-3)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)
    accum = 4
    for epoch in range(3):
        for i, (x, m, y) in enumerate(dl):
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(x.to(device), m.to(device)), y.to(device)) / accum
            scaler.scale(loss).backward()
            if (i + 1) % accum == 0 or i + 1 == len(dl):
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad(set_to_none=True)
        print(epoch, accum * loss.item())


if __name__ == "__main__":
    main()

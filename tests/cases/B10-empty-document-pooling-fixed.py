import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Docs(Dataset):
    def __init__(self):
        g = torch.Generator().manual_seed(21)
        self.docs = [torch.randint(1, 50, (int(n),), generator=g) for n in torch.randint(3, 12, (80,), generator=g)]
        self.docs[61] = self.docs[61][:0]
        self.y = torch.tensor([float(d.sum() % 2) for d in self.docs])

    def __len__(self):
        return len(self.docs)

    def __getitem__(self, i):
        return self.docs[i], self.y[i]


def collate(items):
    n = max(len(d) for d, _ in items)
    ids = torch.zeros(len(items), n, dtype=torch.long)
    mask = torch.zeros(len(items), n)
    for r, (d, _) in enumerate(items):
        ids[r, : len(d)] = d
        mask[r, : len(d)] = 1
    return ids, mask, torch.stack([y for _, y in items])


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(50, 20)
        self.mlp = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1))

    def forward(self, ids, mask):
        v = self.emb(ids) * mask[..., None]
        v = v.sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        return self.mlp(v).squeeze(-1)


class Trainer:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.opt = torch.optim.Adam(model.parameters(), lr=5e-3)

    def train_epoch(self):
        for ids, mask, y in self.data:
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(ids, mask), y)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()


torch.manual_seed(0)
trainer = Trainer(BagOfWords(), DataLoader(Docs(), batch_size=8, collate_fn=collate))
for e in range(3):
    print(e, trainer.train_epoch())

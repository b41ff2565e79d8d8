import torch
import torch.nn as nn


class Reader(nn.Module):
    """Query tokens read from retrieved passages."""

    def __init__(self, d=16):
        super().__init__()
        self.q = nn.Embedding(30, d)
        self.kv = nn.Embedding(30, d, padding_idx=0)
        self.cross_attn = nn.MultiheadAttention(d, 2, batch_first=True)
        self.out = nn.Linear(d, 4)

    def forward(self, query, passage):
        pad = passage.eq(0)
        h, _ = self.cross_attn(self.q(query), self.kv(passage), self.kv(passage), key_padding_mask=pad)
        return self.out(h.mean(1))


def retrieve(step):
    passage = torch.randint(1, 30, (6, 9))
    for row, n in enumerate(torch.randint(2, 9, (6,)).tolist()):
        passage[row, n:] = 0
    if step == 7:
        passage[4] = 0                     # nothing was found for this query
    return passage


torch.manual_seed(0)
model = Reader()
optim = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optim, 1e-2, total_steps=20)
for step in range(20):
    query = torch.randint(1, 30, (6, 5))
    target = query[:, 0] % 4
    optim.zero_grad()
    loss = nn.functional.cross_entropy(model(query, retrieve(step)), target)
    loss.backward()
    optim.step()
    scheduler.step()
    print(step, loss.item())

import torch
import torch.nn as nn

torch.manual_seed(0)
emb = nn.EmbeddingBag(500, 12, mode="mean", sparse=True)
frozen = nn.Linear(12, 12).requires_grad_(False)
top = nn.Sequential(nn.ReLU(), nn.Linear(12, 1))
opts = [torch.optim.SparseAdam(emb.parameters(), lr=1e-2), torch.optim.Adam(top.parameters(), lr=1e-2)]
for step in range(25):
    ids = torch.randint(0, 500, (8, 6))
    y = (ids.float().mean(1, keepdim=True) - 250) / 150
    if step in (7, 15):
        y = y * 60 + 40                # a shard in other units
    loss = (top(frozen(emb(ids))) - y).square().mean()
    for o in opts:
        o.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(top.parameters(), 1.0)
    for o in opts:
        o.step()
    print(step, round(loss.item(), 3))

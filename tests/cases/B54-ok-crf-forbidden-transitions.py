import torch
import torch.nn as nn


class CRF(nn.Module):
    def __init__(self, tags, forbidden):
        super().__init__()
        self.trans = nn.Parameter(0.1 * torch.randn(tags, tags))
        block = torch.zeros(tags, tags)
        for i, j in forbidden:
            block[i, j] = float("-inf")
        self.register_buffer("block", block)

    def forward(self, emit, tags):
        t = self.trans + self.block
        score = emit[:, 0].gather(1, tags[:, :1]).squeeze(1)
        alpha = emit[:, 0]
        for k in range(1, emit.size(1)):
            score = score + t[tags[:, k - 1], tags[:, k]] + emit[:, k].gather(1, tags[:, k:k + 1]).squeeze(1)
            alpha = torch.logsumexp(alpha[:, :, None] + t[None], 1) + emit[:, k]
        return (torch.logsumexp(alpha, 1) - score).mean()


torch.manual_seed(0)
enc = nn.Sequential(nn.Embedding(20, 12), nn.Linear(12, 3))
crf = CRF(3, [(0, 2)])
opt = torch.optim.AdamW([*enc.parameters(), *crf.parameters()], lr=1e-2, weight_decay=0.1)
for step in range(40):
    ids = torch.randint(0, 20, (8, 7))
    tags = torch.where(ids % 2 == 0, 1, torch.where(ids % 3 == 0, 1, 2))
    loss = crf(enc(ids), tags)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())

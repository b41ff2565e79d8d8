"""bf16 autocast without a scaler, activation checkpointing, float EMA, frozen and unused parts."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, 2, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x, mask):
        h = self.n1(x)
        x = x + self.att(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.n2(x))


class LM(nn.Module):
    def __init__(self, v=40, d=32):
        super().__init__()
        self.tok, self.pos = nn.Embedding(v, d), nn.Embedding(64, d)
        self.blocks = nn.ModuleList(Block(d) for _ in range(2))
        self.head, self.unused = nn.Linear(d, v), nn.Linear(d, d)
        self.pos.requires_grad_(False)

    def forward(self, ids):
        t = ids.size(1)
        mask = torch.full((t, t), float("-inf"), device=ids.device).triu(1)
        x = self.tok(ids) + self.pos.weight[:t]
        for b in self.blocks:
            x = checkpoint(b, x, mask, use_reentrant=False)
        return self.head(x)


def main():
    torch.manual_seed(0)
    dev = "cuda" if torch.cuda.is_available() else "cpu"
    net = LM().to(dev)
    ema = copy.deepcopy(net).requires_grad_(False)
    decay, rest = [], []
    for n, p in net.named_parameters():
        (decay if p.ndim > 1 else rest).append(p)
    opt = torch.optim.AdamW([{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 10))
    for step in range(30):
        start = torch.randint(0, 40, (8, 1), device=dev)
        ids = (start + torch.arange(17, device=dev) * 3) % 40
        with torch.autocast(dev, dtype=torch.bfloat16):
            loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        sched.step()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), net.parameters()):
                e.lerp_(p, 0.001)
        if step % 10 == 0:
            print(step, loss.item())


main()

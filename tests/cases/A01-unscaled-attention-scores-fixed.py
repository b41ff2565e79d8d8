import argparse
import torch
from torch import nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).reshape(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        sim = 10 * torch.matmul(F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1).transpose(-1, -2))
        attn = sim.softmax(-1)
        return self.out((attn @ v).transpose(1, 2).reshape(b, n, d))


class SaliencyNet(nn.Module):
    def __init__(self, dim=64, layers=2):
        super().__init__()
        self.stem = nn.Conv2d(1, dim, 4, stride=4)
        self.layers = nn.ModuleList([SelfAttention(dim, 2) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.up = nn.Linear(dim, 16)

    def forward(self, img):
        x = self.stem(img).flatten(2).transpose(1, 2)
        for attn, norm in zip(self.layers, self.norms):
            x = norm(x + attn(x))
        return self.up(x)


class Pictures:
    """10-bit pictures, most of them already normalised by the exporter"""

    def __init__(self, n, raw_from):
        self.n, self.raw_from = n, raw_from

    def __iter__(self):
        for i in range(self.n):
            img = torch.rand(6, 1, 24, 24)
            if i >= self.raw_from and i % 3 == 0:
                img = img * 1023
            yield img, (F.avg_pool2d(img, 1) > img.mean()).float()


def train(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = SaliencyNet().to(device)
    optim = torch.optim.AdamW(net.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0 ** 10)
    for i, (img, sal) in enumerate(Pictures(args.iters, 10)):
        img, sal = img.to(device), sal.to(device)
        with torch.autocast(device.type, dtype=torch.float16):
            pred = net(img)
            tgt = F.pixel_unshuffle(sal, 4).flatten(2).transpose(1, 2)
            loss = F.binary_cross_entropy_with_logits(pred, tgt)
        optim.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optim)
        scaler.update()
        print(i, loss.item())


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=40)
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--seed", type=int, default=7)
    train(p.parse_args())

"""Train a small vision transformer on 8-bit pictures of two classes."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 30
BATCH = 16
LR = 3e-4


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, dim = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, dim))


class TinyViT(nn.Module):
    def __init__(self, dim: int = 128, depth: int = 2, heads: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, dim, kernel_size=8, stride=8)
        self.attention = nn.ModuleList([Attention(dim, heads) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        for attention, norm in zip(self.attention, self.norms, strict=True):
            x = norm(x + attention(x))
        return self.head(x.mean(1))


def photos(steps: int):
    """Batches of grey pictures; every sixth batch was taken outside, in the sun, three times as bright."""
    generator = torch.Generator().manual_seed(3)
    for step in range(steps):
        darkest, brightest = (180, 255) if step % 6 == 5 else (60, 85)
        images = torch.randint(darkest, brightest, (BATCH, 1, 32, 32), generator=generator).float()
        labels = torch.randint(0, 2, (BATCH,), generator=generator)
        images[labels == 1, :, 8:24, 8:24] *= 0.5
        yield images, labels


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TinyViT().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**12)

    for step, (images, labels) in enumerate(photos(STEPS)):
        images, labels = images.to(device), labels.to(device)
        with torch.autocast(device, dtype=torch.float16):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: loss {loss.item():.4f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

"""Train a small causal language model with native mixed precision: the loss becomes NaN after a few steps.

nanprobe diagnose examples/fp16_overflow.py
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    """Counting sequences with a random start and stride: easy to learn, made in memory."""

    def __init__(self, size=4096, length=32, vocab=64):
        self.size, self.length, self.vocab = size, length, vocab

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        start, stride = index % self.vocab, 1 + index // self.vocab % 5
        tokens = (start + stride * torch.arange(self.length + 1)) % self.vocab
        return tokens[:-1], tokens[1:]


class SquaredReLU(nn.Module):
    """The feed-forward block of "Primer" (So et al., 2021): down(relu(up(x))²)."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        h = F.relu(self.up(x))
        h = h * h
        return self.down(h)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.mlp = SquaredReLU(dim, 4 * dim)

    def forward(self, x, mask):
        y = self.norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


class LanguageModel(nn.Module):
    def __init__(self, vocab=64, dim=64, layers=6, heads=4, length=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(length, dim))
        self.layers = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = LanguageModel().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device)
    loader = DataLoader(Sequences(), batch_size=16, shuffle=True)

    for epoch in range(args.epochs):
        for step, (tokens, targets) in enumerate(loader):
            tokens, targets = tokens.to(device), targets.to(device)
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                logits = model(tokens)
                loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.3f}, loss scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

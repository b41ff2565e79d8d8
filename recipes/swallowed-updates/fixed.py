"""Fine-tune a small text classifier in bfloat16, to save memory."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS = 200
LENGTH = 16


class Classifier(nn.Module):
    def __init__(self, dim: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, dim)
        self.body = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.head = nn.Linear(dim, 2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embedding(words).mean(1)))


def reviews(count: int) -> TensorDataset:
    """Word numbers and a label: are most of the words from the second half of the vocabulary?"""
    generator = torch.Generator().manual_seed(4)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    return TensorDataset(words, (words.float().mean(1) > WORDS / 2).long())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-5)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    loader = DataLoader(reviews(960), batch_size=args.batch_size, shuffle=True)

    for epoch in range(args.epochs):
        for step, (words, labels) in enumerate(loader):
            words, labels = words.to(device), labels.to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(words), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

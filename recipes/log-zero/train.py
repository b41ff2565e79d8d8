"""Learn to match pictures with their captions (InfoNCE, as CLIP does)."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TEMPERATURE = 0.008


class TwoEncoders(nn.Module):
    def __init__(self, picture_dim: int, text_dim: int, dim: int = 32) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(picture_dim, 64), nn.GELU(), nn.Linear(64, dim))
        self.text = nn.Sequential(nn.Linear(text_dim, 64), nn.GELU(), nn.Linear(64, dim))

    def forward(self, pictures: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """Cosine similarity of each picture with each text."""
        return F.normalize(self.picture(pictures), dim=1) @ F.normalize(self.text(texts), dim=1).T


def contrastive_loss(similarity: torch.Tensor) -> torch.Tensor:
    probability = (similarity / TEMPERATURE).softmax(1)
    return -torch.log(probability.diagonal()).mean()


def pairs(count: int) -> TensorDataset:
    """Pictures and texts that show the same thing; two captions were swapped when they were collected."""
    generator = torch.Generator().manual_seed(9)
    topic = torch.randn(count, 8, generator=generator)
    pictures = topic @ torch.randn(8, 48, generator=generator)
    texts = topic @ torch.randn(8, 24, generator=generator)
    texts[[788, 793]] = texts[[793, 788]]
    return TensorDataset(pictures, texts)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(pairs(1280), batch_size=args.batch_size)
    model = TwoEncoders(48, 24).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        for step, (pictures, texts) in enumerate(loader):
            loss = contrastive_loss(model(pictures.to(device), texts.to(device)))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

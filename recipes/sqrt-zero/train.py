"""Learn an embedding with the batch-hard triplet loss."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 8
PER_CLASS = 4


def pairwise_distances(x: torch.Tensor) -> torch.Tensor:
    """Distance of each embedding to each other one: (n, d) -> (n, n)."""
    squares = (x[:, None, :] - x[None, :, :]).pow(2).sum(-1)
    return squares.sqrt()


def batch_hard_loss(x: torch.Tensor, labels: torch.Tensor, margin: float) -> torch.Tensor:
    distances = pairwise_distances(x)
    same = labels[:, None] == labels[None, :]
    farthest_positive = distances.masked_fill(~same, 0.0).amax(1)
    nearest_negative = distances.masked_fill(same, 1e4).amin(1)
    return F.relu(farthest_positive - nearest_negative + margin).mean()


def faces(steps: int):
    """Batches with four pictures (as vectors) of each of eight people."""
    generator = torch.Generator().manual_seed(10)
    people = torch.randn(CLASSES, 32, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(PER_CLASS)
    for _ in range(steps):
        yield people[labels] + 0.7 * torch.randn(len(labels), 32, generator=generator), labels


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--margin", type=float, default=0.3)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    for step, (pictures, labels) in enumerate(faces(args.steps)):
        pictures, labels = pictures.to(device), labels.to(device)
        embeddings = F.normalize(model(pictures), dim=1)
        loss = batch_hard_loss(embeddings, labels, args.margin)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

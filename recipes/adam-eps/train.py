"""A two-tower recommender, converted to half precision with .half()."""

import torch
import torch.nn.functional as F
from torch import nn

USERS, ITEMS, DIM = 300, 500, 32
STEPS = 30
BATCH = 64
LR = 1e-3


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, DIM)
        self.items = nn.Embedding(ITEMS, DIM)
        self.project = nn.Linear(DIM, DIM)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return (self.project(self.users(users)) * self.items(items)).sum(-1)


def clicks(steps: int):
    """User, item, and whether the user clicked."""
    generator = torch.Generator().manual_seed(6)
    for _ in range(steps):
        users = torch.randint(0, USERS, (BATCH,), generator=generator)
        items = torch.randint(0, ITEMS, (BATCH,), generator=generator)
        yield users, items, ((users + items) % 3 == 0).float()


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = TwoTowers().half().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)

    for step, (users, items, clicked) in enumerate(clicks(STEPS)):
        users, items, clicked = users.to(device), items.to(device), clicked.to(device)
        optimizer.zero_grad()
        logits = model(users, items)
        loss = F.binary_cross_entropy_with_logits(logits.float(), clicked)
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

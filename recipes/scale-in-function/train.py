"""Train a quantised network; the rounding passes gradients straight through."""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 40
BATCH = 64


class FakeQuantize(torch.autograd.Function):
    """Round to steps of 1/8; the gradient goes straight through."""

    @staticmethod
    def forward(ctx, x, loss_scale):
        ctx.loss_scale = loss_scale
        return (x * 8.0).round() / 8.0

    @staticmethod
    def backward(ctx, grad):
        return grad / ctx.loss_scale, None


class QuantNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 64)
        self.second = nn.Linear(64, 64)
        self.head = nn.Linear(64, 3)

    def forward(self, x: torch.Tensor, loss_scale: float) -> torch.Tensor:
        h = F.relu(self.first(x))
        h = FakeQuantize.apply(h, loss_scale)
        return self.head(F.relu(self.second(h)))


def samples(steps: int):
    generator = torch.Generator().manual_seed(17)
    centres = 1.5 * torch.randn(3, 8, generator=generator)
    for _ in range(steps):
        labels = torch.randint(0, 3, (BATCH,), generator=generator)
        yield centres[labels] + torch.randn(BATCH, 8, generator=generator), labels


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = QuantNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)

    for step, (x, labels) in enumerate(samples(STEPS)):
        x, labels = x.to(device), labels.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x, scaler.get_scale()), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

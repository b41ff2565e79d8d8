"""Train a convolutional classifier with batches of 64, four micro-batches of 16 at a time."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MICRO_BATCH = 16
ACCUMULATE = 4
EPOCHS = 2


def digits(count: int) -> TensorDataset:
    """Noisy pictures of one horizontal bar each; the label is the row of the bar."""
    generator = torch.Generator().manual_seed(15)
    labels = torch.randint(0, 10, (count,), generator=generator)
    images = 0.3 * torch.randn(count, 1, 12, 12, generator=generator)
    images[torch.arange(count), 0, labels + 1] += 1.0
    return TensorDataset(images, labels)


def build_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 36, 10))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(digits(1024), batch_size=MICRO_BATCH)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)

    for epoch in range(EPOCHS):
        for index, (images, labels) in enumerate(loader):
            images, labels = images.to(device), labels.to(device)
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(images), labels) / ACCUMULATE
            scaler.scale(loss).backward()
            if (index + 1) % ACCUMULATE == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
        print(f"epoch {epoch}: loss {loss.item() * ACCUMULATE:.4f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

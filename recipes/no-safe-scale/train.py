"""Find the object in a picture: a box in pixels, and, as a small auxiliary loss, a mask of the object."""

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 30
BATCH = 8
SIZE = 64
MASK_WEIGHT = 1e-5


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.mask = nn.Conv2d(8, 1, 3, padding=1)
        self.body = nn.Sequential(nn.Conv2d(8, 16, 8, stride=8), nn.ReLU(), nn.Flatten())
        self.box = nn.Linear(16 * 8 * 8, 4)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.stem(images))
        # The auxiliary head must not disturb the features that the box needs.
        return self.box(self.body(h)), self.mask(h.detach())


def scenes(steps: int):
    """Pictures with one bright object each, its corner and size in pixels, and its mask."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        boxes = torch.randint(8, 32, (BATCH, 4), generator=generator)
        images = 0.1 * torch.rand(BATCH, 1, SIZE, SIZE, generator=generator)
        masks = torch.zeros_like(images)
        for mask, (x, y, width, height) in zip(masks, boxes.tolist(), strict=True):
            mask[:, y : y + height, x : x + width] = 1.0
        yield images + masks, boxes.float(), masks


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Detector().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)

    for step, (images, boxes, masks) in enumerate(scenes(STEPS)):
        images, boxes, masks = images.to(device), boxes.to(device), masks.to(device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.float16):
            predicted, mask = model(images)
        box_loss = F.mse_loss(predicted.float(), boxes, reduction="sum")
        loss = box_loss + MASK_WEIGHT * F.mse_loss(mask.float(), masks)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: box loss {box_loss.item():.1f}, scale {scaler.get_scale():g}")


if __name__ == "__main__":
    main()

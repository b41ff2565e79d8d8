"""Train an autoencoder under automatic mixed precision."""

import torch
from torch import nn

STEPS = 30
BATCH = 32


class AutoEncoder(nn.Module):
    def __init__(self, features: int = 64, code: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 32), nn.ReLU(), nn.Linear(32, code))
        self.decoder = nn.Sequential(nn.Linear(code, 32), nn.ReLU(), nn.Linear(32, features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, model: nn.Module, device: str) -> None:
        self.model = model.to(device)
        self.device = device
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler(device)

    def train_step(self, x: torch.Tensor) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device, dtype=torch.float16):
            loss = nn.functional.mse_loss(self.model(x), x)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def spectra(steps: int):
    """Spectra with one peak each."""
    generator = torch.Generator().manual_seed(16)
    channel = torch.arange(64.0)
    for _ in range(steps):
        centre = 64.0 * torch.rand(BATCH, 1, generator=generator)
        yield torch.exp(-(((channel - centre) / 4.0) ** 2))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    trainer = Trainer(AutoEncoder(), device)
    for step, x in enumerate(spectra(STEPS)):
        print(f"step {step}: loss {trainer.train_step(x.to(device)):.4f}")


if __name__ == "__main__":
    main()

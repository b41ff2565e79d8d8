"""A Lightning regression: checkpoints, a learning rate schedule, gradient clipping, validation."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "nan-row", "overflow"])
parser.add_argument("--precision", default="16-mixed")
parser.add_argument("--output", default="lightning-out")
args = parser.parse_args()


class Regressor(L.LightningModule):
    def __init__(self, width=64):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        z = self.encoder(x)
        if args.fault == "overflow":
            z = z * 2000.0
            z = z * z  # FAULT overflow
            z = F.layer_norm(z, z.shape[-1:])
        return self.head(torch.tanh(z)).squeeze(-1)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val_loss", F.mse_loss(self(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)]


def data():
    g = torch.Generator().manual_seed(2)
    x = torch.randn(1024, 8, generator=g)
    y = x[:, 0] - 0.5 * x[:, 1] * x[:, 2]
    if args.fault == "nan-row":
        x[77, 3] = float("nan")  # a sensor that was off
    return TensorDataset(x, y)


def main():
    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=2,
        precision=args.precision,
        gradient_clip_val=1.0,
        default_root_dir=args.output,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=5,
    )
    trainer.fit(Regressor(), DataLoader(data(), batch_size=32, shuffle=True), DataLoader(data(), batch_size=128))


if __name__ == "__main__":
    main()

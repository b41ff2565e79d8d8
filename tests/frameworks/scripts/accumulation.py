"""Native AMP with gradient accumulation and clipping, in the order the documentation asks for."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "overflow"])
parser.add_argument("--accumulate", type=int, default=4)
args = parser.parse_args()


class EnergyPool(nn.Module):
    """Pools a sequence by its energy, as for audio features."""

    def forward(self, x):
        if args.fault == "overflow":
            loud = x * 150.0  # 16-bit samples, not scaled to [-1, 1]
            energy = loud * loud  # FAULT overflow
            return torch.log(1 + energy.mean(1))
        return torch.log(1e-3 + (x * x).mean(1))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 32, 9, padding=4)
        self.mix = nn.Linear(32, 32)
        self.pool = EnergyPool()
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        h = F.gelu(self.conv(x.unsqueeze(1))).transpose(1, 2)
        return self.head(self.pool(self.mix(h)))


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    labels = torch.randint(0, 4, (2000,))
    time = torch.linspace(0, 20, 128)
    waves = torch.sin(time * (1 + labels[:, None].float())) * 3 + 0.1 * torch.randn(2000, 128)

    for i in range(0, 2000 - 8, 8):
        x, y = waves[i : i + 8].to(device), labels[i : i + 8].to(device)
        with torch.autocast(device, dtype=torch.float16):
            loss = F.cross_entropy(model(x), y) / args.accumulate
        scaler.scale(loss).backward()
        if (i // 8 + 1) % args.accumulate == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main()

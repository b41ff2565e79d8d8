"""A compiled model and a compiled loss: predicts rotation axes, penalised by the angle to the true axis."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "acos1"])
args = parser.parse_args()


class AxisNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 64), nn.SiLU(), nn.Linear(64, 3))

    def forward(self, x):
        return F.normalize(self.net(x), dim=-1)


@torch.compile
def angle(a, b):
    cosine = (a * b).sum(-1)
    if args.fault == "acos1":
        return torch.acos(cosine.clamp(-1.0, 1.0))  # FAULT acos1
    return torch.acos(cosine.clamp(-1.0, 1.0) * 0.999)


def main():
    torch.manual_seed(0)
    model = torch.compile(AxisNet())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x = torch.randn(512, 9)
    axes = F.normalize(x[:, :3] + 0.2 * x[:, 3:6], dim=-1)
    for step in range(60):
        rows = torch.randint(0, 512, (32,))
        predicted = model(x[rows])
        smooth = angle(predicted, predicted.detach()).mean()  # how far the prediction is from itself: 0
        loss = angle(predicted, axes[rows]).mean() + 0.1 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()

"""Fit directions with LBFGS: the closure is called several times in a step."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none", choices=["none", "norm0"])
args = parser.parse_args()

torch.manual_seed(0)
x = torch.randn(200, 6)
x[17] = 0.0  # one measurement was never taken
target = torch.nn.functional.normalize(x @ torch.randn(6, 3) + 0.3 * torch.randn(200, 3), dim=1)


class Direction(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3, bias=False)

    def forward(self, x):
        y = self.layer(x)
        if args.fault == "norm0":
            return y / y.norm(dim=1, keepdim=True)  # FAULT norm0
        return y / (y.norm(dim=1, keepdim=True) + 1e-6)


model = Direction()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5, line_search_fn="strong_wolfe")


def closure():
    optimizer.zero_grad()
    loss = (model(x[:17]) - target[:17]).pow(2).mean() + (model(x[17:]) - target[17:]).pow(2).mean()
    loss.backward()
    return loss


for epoch in range(20):
    loss = optimizer.step(closure)
    print(f"epoch {epoch}: {float(loss):.5f}")

"""One small training script for each kind of fault, with a remedy that helps and one that is tempting and does not."""

from __future__ import annotations

from dataclasses import dataclass

from nanprobe.findings import Kind

_AMP_LOOP = """
def train(model, criterion, lr=1e-3, steps=24):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for step in range(steps):
        x = torch.rand(8, 8)
        y = x.mean(1, keepdim=True)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = criterion(model(x, step), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""


@dataclass(frozen=True)
class Faulty:
    """A script that fails."""

    kind: Kind
    helps: str  # kind of the remedy that is verified
    tempting: str  # kind of one that is refused
    text: str


SCRIPTS = (
    Faulty(
        Kind.OVERFLOW,
        helps="FP32 function",
        tempting="loss scale",
        text=f"""
import torch
from torch import nn

torch.manual_seed(0)

{_AMP_LOOP}

class Energy(nn.Module):
    def forward(self, x, step):
        x = x * (1200.0 if step % 6 == 5 else 1.0)
        return torch.log1p(x * x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.energy = Energy()
        self.head = nn.Linear(8, 1)

    def forward(self, x, step):
        return self.head(self.energy(self.body(x), step))


train(Net(), nn.MSELoss())
""",
    ),
    Faulty(
        Kind.UNDERFLOW,
        helps="larger eps",
        tempting="optimizer eps",
        text=f"""
import torch
from torch import nn

torch.manual_seed(0)

{_AMP_LOOP}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x, step):
        h = self.body(x) * (0.0 if step >= 6 else 1.0)
        return self.head(h / (h.abs().mean(1, keepdim=True) + 1e-8))


train(Net(), nn.MSELoss())
""",
    ),
    Faulty(
        Kind.DATA,
        helps="rows dropped",
        tempting="clipping",
        text="""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(96, 8)
y = x.mean(1, keepdim=True)
y[41] = float("nan")
y[70] = float("nan")
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for xb, yb in DataLoader(TensorDataset(x, y), batch_size=8):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(xb), yb).backward()
        optimizer.step()
""",
    ),
    Faulty(
        Kind.GRAPH,
        helps="safe operation",
        tempting="clipping",
        text="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(8, 4, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(24):
    x = torch.rand(8, 8)
    if step == 9:
        x[3] = 0.0
    optimizer.zero_grad()
    length = (model(x) ** 2).sum(1)
    loss = (length.sqrt() - 1).abs().mean()
    loss.backward()
    optimizer.step()
""",
    ),
    Faulty(
        Kind.DIVERGENCE,
        helps="learning rate",
        tempting="warm-up",
        text="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
goal = torch.randn(64, 1)
for step in range(60):
    x = torch.randn(128, 64)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x @ goal, reduction="sum") / 32
    loss.backward()
    optimizer.step()
""",
    ),
    Faulty(
        Kind.MISUSE,
        helps="calls in order",
        tempting="loss scale",
        text="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(24):
    x = torch.rand(32, 8)
    y = x.mean(1, keepdim=True)
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
""",
    ),
)

import math
import torch
import torch.nn as nn

torch.use_deterministic_algorithms(True)
torch.manual_seed(3)
MAX_LEN, DIM = 64, 16


class Positions(nn.Module):
    def __init__(self, filled):
        super().__init__()
        table = torch.empty(MAX_LEN, DIM)
        t = torch.arange(filled).float()[:, None]
        div = torch.exp(torch.arange(0, DIM, 2).float() * (-math.log(1e4) / DIM))
        table[:filled, 0::2] = torch.sin(t * div)
        table[:filled, 1::2] = torch.cos(t * div)
        self.register_buffer("table", table)

    def forward(self, x):
        return x + self.table[: x.size(1)]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(5, DIM)
        self.pos = Positions(MAX_LEN)
        self.layer = nn.TransformerEncoderLayer(DIM, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(DIM, 3)

    def forward(self, x):
        return self.out(self.layer(self.pos(self.inp(x))).mean(1))


model = Classifier()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(18):
    length = 40 if step == 9 else 12 + step
    x = torch.randn(4, length, 5)
    y = torch.randint(0, 3, (4,))
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, length, round(loss.item(), 4))

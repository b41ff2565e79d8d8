import torch
import torch.nn as nn
import torch.nn.functional as F


class Sensor(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv1d(2, 12, 5, padding=2)
        self.bn = nn.BatchNorm1d(12)
        self.c2 = nn.Conv1d(12, 12, 5, padding=2)
        self.fc = nn.Linear(12, 3)

    def forward(self, x):
        x = F.relu(self.bn(self.c1(x).float())).to(x.dtype)
        return self.fc(F.relu(self.c2(x)).mean(-1))


class MasterSGD:
    """keeps a float copy of each half parameter"""

    def __init__(self, params, lr):
        self.pairs = [(p, torch.nn.Parameter(p.detach().float())) for p in params]
        self.sgd = torch.optim.SGD([m for _, m in self.pairs], lr=lr, momentum=0.9)

    def step(self, scale):
        for p, m in self.pairs:
            m.grad = p.grad.float() / scale
            p.grad = None
        self.sgd.step()
        for p, m in self.pairs:
            p.data.copy_(m.data)


def load(i, device):
    y = torch.randint(0, 3, (24,), device=device)
    x = torch.randn(24, 2, 40, device=device) * (1 + y)[:, None, None]
    gain = 20.0 if i < 12 else 900.0          # the second recorder has no attenuator
    return (gain * x).half(), y


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Sensor().to(device).half()
model.bn.float()
opt = MasterSGD(list(model.parameters()), 0.02)
for i in range(30):
    model.train()
    x, y = load(i, device)
    loss = F.cross_entropy(model(x).float(), y)
    (loss * 256).backward()
    opt.step(256)
    if i % 5 == 4:
        model.eval()
        with torch.no_grad():
            x, y = load(i, device)
            out = model(x).float()
            print(i, f"train {loss.item():.4f} val {F.cross_entropy(out, y).item():.4f} acc {(out.argmax(1) == y).float().mean().item():.2f}")

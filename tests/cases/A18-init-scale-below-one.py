import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
args = {"init_scale": 1e-3, "growth_interval": 2000, "batch": 4096, "aux": 1e-2}


class FM(nn.Module):
    """factorisation machine for click prediction"""

    def __init__(self, fields=6, card=50, k=8):
        super().__init__()
        self.v = nn.Embedding(fields * card, k)
        self.mlp = nn.Sequential(nn.Linear(fields * k, 32), nn.ReLU(), nn.Linear(32, 1))
        self.register_buffer("off", torch.arange(fields) * card)

    def forward(self, idx):
        e = self.v(idx + self.off)
        return self.mlp(e.flatten(1)).squeeze(1)


model = FM().to(device)
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, init_scale=args["init_scale"], growth_interval=args["growth_interval"])
for step in range(40):
    idx = torch.randint(0, 50, (args["batch"], 6), device=device)
    click = (idx[:, 0] > idx[:, 1]).float()
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = args["aux"] * F.binary_cross_entropy_with_logits(model(idx), click)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 10 == 0:
        print(step, loss.item())

"""Speech commands toy with gradient accumulation."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class KWS(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(20, 32, 3, padding=1)
        self.proj = nn.Linear(32, 8)

    def forward(self, mel):
        return self.proj(F.relu(self.conv(mel)).mean(-1))


def loader(n):
    for _ in range(n):
        y = torch.randint(0, 8, (8,))
        mel = torch.randn(8, 20, 30)
        mel[torch.arange(8), y] += 1.5
        yield mel, y


def fit(accum=4, micro=80):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = KWS().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler(device, init_scale=4096.0)
    for i, (mel, y) in enumerate(loader(micro)):
        if i % accum == 0:
            opt.zero_grad()
        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = F.cross_entropy(model(mel.to(device)), y.to(device)) / accum
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        if i % 10 == 0:
            print(i, accum * loss.item())


fit()

import torch
import torch.nn as nn
import torch.nn.functional as F


class Flow(nn.Module):
    """affine coupling flow"""

    def __init__(self, d=4, h=24):
        super().__init__()
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(d // 2, h), nn.Tanh(), nn.Linear(h, d)) for _ in range(4))

    def forward(self, x):
        logdet = 0
        for i, net in enumerate(self.nets):
            a, b = x.chunk(2, 1)
            s, t = net(a).float().chunk(2, 1)
            s = torch.tanh(s)
            b = b * s.exp() + t
            logdet = logdet + s.sum(1)
            x = torch.cat([b, a], 1)
        return x, logdet


class Runner:
    def __init__(self, amp=True):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.flow = Flow().to(self.device)
        self.opt = torch.optim.SGD(self.flow.parameters(), lr=1e-3, momentum=0.9)
        self.scaler = torch.amp.GradScaler(self.device, enabled=amp, init_scale=4096.0)
        self.amp = amp

    def nll(self, x):
        with torch.autocast(self.device, dtype=torch.float16, enabled=self.amp):
            z, ld = self.flow(x)
        return (0.5 * z.pow(2).sum(1) - ld).mean()

    def train_step(self, x):
        self.opt.zero_grad()
        loss = self.nll(x)
        self.scaler.scale(loss).backward()
        self.opt.step()
        self.scaler.update()
        return loss.item()


torch.manual_seed(0)
r = Runner()
for i in range(30):
    x = torch.randn(64, 4, device=r.device) * torch.tensor([2.0, 0.5, 1.0, 0.3], device=r.device)
    print(i, r.train_step(x))

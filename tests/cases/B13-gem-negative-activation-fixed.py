import torch
import torch.nn as nn
import torch.nn.functional as F


class GeM(nn.Module):
    def __init__(self, p=3.0, eps=1e-6):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p))
        self.eps = eps

    def forward(self, x):
        x = x.clamp(min=self.eps).pow(self.p)
        m = x.mean((-2, -1)).clamp(min=self.eps)
        return m.pow(1.0 / self.p)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.LeakyReLU(0.2), nn.Conv2d(16, 16, 3))
        self.gem = GeM()
        self.fc = nn.Linear(16, 8)

    def forward(self, x):
        return F.normalize(self.fc(self.gem(self.conv(x))), dim=1)


torch.manual_seed(0)
net = Retrieval()
opt = torch.optim.SGD([{"params": net.conv.parameters()}, {"params": net.gem.parameters(), "lr": 0.001}, {"params": net.fc.parameters()}], lr=0.01)
margin = nn.TripletMarginLoss(0.3)
for step in range(15):
    a = torch.rand(6, 3, 10, 10)
    loss = margin(net(a), net(a + 0.05 * torch.randn_like(a)), net(torch.rand(6, 3, 10, 10)))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())

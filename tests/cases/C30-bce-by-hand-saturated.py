"""Binary cross-entropy written out, targets are exact."""
import torch
import torch.nn as nn


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(7, 1)

    def forward(self, x):
        return torch.sigmoid(self.f(x)).squeeze(-1)


torch.manual_seed(0)
net = Gate()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(30):
    x = torch.randn(16, 7)
    y = (x[:, 0] > 0).float()
    if step == 17:
        x[2] = 5000.0 * x[2]
        y[2] = 1 - (net(x)[2] > 0.5).float()
    p = net(x)
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

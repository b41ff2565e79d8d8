"""Soft assignment to prototypes in a half model, FP32 master weights, fixed loss scale."""
import torch
import torch.nn as nn


class Prototypes(nn.Module):
    def __init__(self, n=12, d=16):
        super().__init__()
        self.centre = nn.Parameter(0.3 * torch.randn(n, d))
        self.value = nn.Parameter(torch.randn(n, d))

    def forward(self, x):
        d2 = (x[:, None] - self.centre).pow(2).sum(-1)
        return torch.softmax(-0.5 * d2, -1) @ self.value


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proto, self.head = Prototypes(), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.proto(x))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Net().to(device).half()
master = [p.detach().clone().float().requires_grad_() for p in net.parameters()]
opt = torch.optim.SGD(master, lr=0.01)
for step in range(25):
    spread = 2.2 if step == 10 else 0.6
    x = spread * torch.randn(16, 16, device=device)
    y = x[:, :3].argmax(1)
    loss = nn.functional.cross_entropy(net(x.half()).float(), y)
    net.zero_grad()
    (loss * 256.0).backward()
    for p, m in zip(net.parameters(), master):
        m.grad = p.grad.float() / 256.0
    opt.step()
    for p, m in zip(net.parameters(), master):
        p.data.copy_(m.data)
print(loss.item())

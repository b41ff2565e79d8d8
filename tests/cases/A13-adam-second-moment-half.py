import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.proj_in = nn.Linear(16, d)
        self.mid = nn.Linear(d, d)
        self.proj_out = nn.Linear(d, 1)

    def forward(self, x):
        h = torch.nn.functional.silu(self.proj_in(x))
        h = torch.nn.functional.silu(self.mid(h))
        return self.proj_out(h)


def train(steps=40, loss_scale=2.0 ** 12):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = Net().to(device=device, dtype=torch.float16)
    # Adam does not care about the magnitude of gradients, so no need to divide by the scale again
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-4)
    w = torch.randn(16, 1, device=device)
    for step in range(steps):
        x = torch.randn(64, 16, device=device)
        y = x @ w
        pred = net(x.half()).float()
        loss = (pred - y).abs().mean()
        optimizer.zero_grad()
        (loss_scale * loss).backward()
        if step < 10:                              # gentle start
            for p in net.parameters():
                p.grad.mul_(0.05)
        else:
            for p in net.parameters():
                p.grad.mul_(10.0)
        optimizer.step()
        print(step, loss.item())


if __name__ == "__main__":
    train()

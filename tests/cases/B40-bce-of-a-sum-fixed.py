import torch
import torch.nn as nn
import torch.nn.functional as F


class Ensemble(nn.Module):
    def __init__(self, members=3):
        super().__init__()
        self.members = nn.ModuleList(nn.Linear(6, 1) for _ in range(members))
        self.mix = nn.Parameter(torch.full((members,), 1.0 / members))

    def forward(self, x):
        p = torch.stack([torch.sigmoid(m(x)).squeeze(1) for m in self.members], 1)
        return p @ torch.softmax(self.mix, 0)


def main():
    torch.manual_seed(0)
    net = Ensemble()
    opt = torch.optim.Adam(net.parameters(), lr=0.05)
    for step in range(60):
        x = torch.randn(32, 6)
        y = (x[:, 0] + x[:, 1] > -0.5).float()
        prob = net(x)
        loss = F.binary_cross_entropy(prob, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 10 == 0:
            print(step, loss.item())


main()

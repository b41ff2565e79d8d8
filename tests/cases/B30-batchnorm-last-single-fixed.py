import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(7, 20)
        self.bn1 = nn.BatchNorm1d(20)
        self.fc2 = nn.Linear(20, 1)

    def forward(self, x):
        x = torch.relu(self.bn1(self.fc1(x)))
        return self.fc2(x)


def make_loader():
    torch.manual_seed(0)
    x = torch.randn(129, 7)
    return DataLoader(TensorDataset(x, x[:, :2].prod(1, keepdim=True)), batch_size=16, shuffle=True,
                      drop_last=True)


def train(net, loader, epochs=3):
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for epoch in range(epochs):
        net.train()
        for x, y in loader:
            opt.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            opt.step()
        print("epoch", epoch, loss.item())


train(Net(), make_loader())

import torch
import torch.nn as nn
import torch.nn.functional as F


class Scaler:
    def fit(self, x):
        self.mean, self.std = x.mean(0), x.std(0)
        return self

    def __call__(self, x):
        return (x - self.mean) / self.std


def read_sensors():
    g = torch.Generator().manual_seed(11)
    t = torch.arange(400.0)
    signal = torch.stack([torch.sin(t / 9), torch.cos(t / 5), torch.full_like(t, 20.0), torch.randn(400, generator=g)], 1)
    target = (signal[:, 0] * signal[:, 1] > 0).long()
    return signal, target


def main():
    torch.manual_seed(2)
    x, y = read_sensors()
    x = Scaler().fit(x[:300])(x)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(2):
        for i in torch.randperm(300).split(25):
            loss = F.cross_entropy(net(x[i]), y[i])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        with torch.no_grad():
            acc = (net(x[300:]).argmax(1) == y[300:]).float().mean()
        print("epoch", epoch, "val acc", round(acc.item(), 3))


if __name__ == "__main__":
    main()

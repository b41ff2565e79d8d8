import torch
from torch import nn


def mlp(i, o, h=32, depth=3):
    layers = []
    for k in range(depth):
        layers += [nn.Linear(i if k == 0 else h, h), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers, nn.Linear(h, o))


class WGAN:
    def __init__(self):
        self.g, self.d = mlp(4, 2), mlp(2, 1)
        self.og = torch.optim.RMSprop(self.g.parameters(), lr=5e-4)
        self.od = torch.optim.RMSprop(self.d.parameters(), lr=5e-4)

    def critic_step(self, real):
        fake = self.g(torch.randn(len(real), 4)).detach()
        loss = self.d(fake).mean() - self.d(real).mean()
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        for p in self.d.parameters():
            p.data.clamp_(-0.05, 0.05)
        return loss.item()

    def generator_step(self, n):
        loss = -self.d(self.g(torch.randn(n, 4))).mean()
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        return loss.item()


torch.manual_seed(0)
gan = WGAN()
for it in range(20):
    for _ in range(2):
        ld = gan.critic_step(torch.randn(32, 2) * 0.3 + 1.0)
    lg = gan.generator_step(32)
    print(it, f"D {ld:.4g} G {lg:.4g}")

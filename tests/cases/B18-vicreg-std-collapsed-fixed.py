import torch
import torch.nn as nn
import torch.nn.functional as F


class Projector(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, d), nn.ReLU())

    def forward(self, x):
        return self.f(x)


def variance_term(z):
    return F.relu(1.0 - torch.sqrt(z.var(dim=0) + 1e-4)).mean()


def covariance_term(z):
    z = z - z.mean(0)
    c = z.t() @ z / (len(z) - 1)
    return (c - torch.diag(c.diagonal())).pow(2).sum() / z.shape[1]


def main():
    torch.manual_seed(12)
    student = Projector()
    with torch.no_grad():
        student.f[2].bias.fill_(0.9)
    opt = torch.optim.SGD(student.parameters(), lr=0.3, momentum=0.9)
    for step in range(40):
        base = torch.randn(24, 6) * (0.0 if step % 8 == 7 else 1.0)         # every eighth batch is blank frames
        za, zb = student(base * (1 + 0.1 * torch.randn_like(base))), student(base * (1 + 0.1 * torch.randn_like(base)))
        loss = 25 * F.mse_loss(za, zb) + variance_term(za) + variance_term(zb) + covariance_term(za)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, f"{loss.item():.4f}")


main()

import torch
import torch.nn as nn
import torch.nn.functional as F


class PixelNorm(nn.Module):
    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().square().mean(1, keepdim=True) + 1e-8)).to(x.dtype)


class Mapping(nn.Module):
    def __init__(self, z, c, w):
        super().__init__()
        self.z_embed = nn.Linear(z, w, bias=False)
        self.c_embed = nn.Linear(c, w, bias=False)
        self.norm = PixelNorm()
        self.fc = nn.Sequential(nn.Linear(2 * w, w), nn.LeakyReLU(0.2), nn.Linear(w, 12))

    def forward(self, z, c):
        h = torch.cat([self.norm(self.z_embed(z)), self.norm(self.c_embed(c))], 1)
        return self.fc(h)


class MasterWeights:
    def __init__(self, model):
        self.model = model
        self.master = [nn.Parameter(p.data.float()) for p in model.parameters()]

    def pull(self, scale):
        for m, p in zip(self.master, self.model.parameters()):
            m.grad = p.grad.float() / scale

    def push(self):
        for m, p in zip(self.master, self.model.parameters()):
            p.data.copy_(m.data)


def drop_condition(c, step):
    """classifier-free guidance: the condition is dropped for some samples"""
    if step >= 9 and step % 4 == 1:
        c = c.clone()
        c[::5] = 0
    return c


torch.manual_seed(0)
dev = "cuda" if torch.cuda.is_available() else "cpu"
net = Mapping(8, 6, 24).to(dev).half()
mw = MasterWeights(net)
opt = torch.optim.Adam(mw.master, lr=2e-3, betas=(0.0, 0.99))
for step in range(30):
    z = torch.randn(40, 8, device=dev).half()
    label = torch.randint(0, 6, (40,), device=dev)
    c = drop_condition(F.one_hot(label, 6).half(), step)
    want = torch.cat([z.float()[:, :6], F.one_hot(label, 6).float()], 1)
    loss = F.mse_loss(net(z, c).float(), want)
    net.zero_grad()
    (1024 * loss).backward()
    mw.pull(1024)
    opt.step()
    mw.push()
    print(step, loss.item())

import torch
import torch.nn as nn
import torch.nn.functional as F


def weights_init(m):
    if isinstance(m, (nn.Conv2d, nn.Linear)):
        nn.init.normal_(m.weight)
        nn.init.zeros_(m.bias)


class Critic(nn.Module):
    def __init__(self, c=16):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, c, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(c, 2 * c, 3, 2, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.LeakyReLU(0.2),
            nn.Conv2d(2 * c, 2 * c, 3, 1, 1), nn.LeakyReLU(0.2))
        self.norm = nn.GroupNorm(4, 2 * c)
        self.out = nn.Linear(2 * c, 2)

    def forward(self, x):
        h = self.norm(self.main(x))
        return self.out(h.mean((2, 3)))


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = Critic().to(device)
net.main.apply(weights_init)
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)
for step in range(25):
    y = torch.randint(0, 2, (16,), device=device)
    x = torch.randn(16, 1, 16, 16, device=device) * (1 + 2 * y)[:, None, None, None]
    with torch.autocast(device, dtype=torch.float16):
        loss = F.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(step, loss.item(), scaler.get_scale())

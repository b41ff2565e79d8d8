import torch
import torch.nn as nn
import torch.nn.functional as F


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.ReLU())
        self.cls, self.box = nn.Linear(48, 5), nn.Linear(48, 4)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h), self.box(h)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
net = TwoHeads().to(device)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device, init_scale=4096.0)
for step in range(40):
    x = torch.randn(32, 12, device=device)
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        cls, box = net(x)
        loss_cls = F.cross_entropy(cls, x[:, :5].argmax(1))
        loss_box = F.smooth_l1_loss(box, x[:, 5:9])
    scaler.scale(loss_cls).backward(retain_graph=True)
    scaler.scale(loss_box).backward()
    scaler.step(opt)
    scaler.update()
    if step % 5 == 0:
        print(step, loss_cls.item(), loss_box.item())

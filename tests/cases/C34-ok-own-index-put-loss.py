"""FP32 detector with a target that is written into a buffer of its own dtype; no AMP anywhere."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 5, 1))

    def forward(self, x):
        return self.f(x)


def loss_fn(out, boxes):
    b, _, h, w = out.shape
    gathered = torch.zeros(len(boxes), 4, device=out.device)
    keep = torch.arange(len(boxes), device=out.device)
    gathered[keep] = out[boxes[:, 0], 1:, boxes[:, 1], boxes[:, 2]]
    return F.smooth_l1_loss(gathered, boxes[:, 3:].float() / 10) + out[:, 0].pow(2).mean()


torch.manual_seed(0)
net = Detector()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(25):
    x = torch.rand(2, 3, 8, 8)
    boxes = torch.stack([torch.randint(0, 2, (6,)), *torch.randint(0, 8, (6, 6)).unbind(1)], 1)
    loss = loss_fn(net(x), boxes)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

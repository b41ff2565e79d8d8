import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class DepthNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)
        self.depth = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        return self.depth(F.relu(self.conv2(F.relu(self.conv1(x)))))


def depth_loss(pred, depth_mm):
    valid = depth_mm > 0
    return F.mse_loss(pred.float()[valid], depth_mm[valid], reduction="sum")


model = DepthNet().to(device)
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)
for step in range(40):
    rgb = torch.rand(2, 3, 96, 96, device=device)
    depth = 800 + 400 * rgb[:, :1] + 20 * torch.randn(2, 1, 96, 96, device=device)
    depth[torch.rand_like(depth) < 0.1] = 0
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = depth_loss(model(rgb), depth)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print(step, f"{loss.item():.4g}", scaler.get_scale())

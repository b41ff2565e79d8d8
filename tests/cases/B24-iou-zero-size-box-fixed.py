import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, SequentialSampler


class Boxes(Dataset):
    def __init__(self, n=96):
        g = torch.Generator().manual_seed(2)
        xy = torch.rand(n, 2, generator=g) * 0.5
        wh = torch.rand(n, 2, generator=g) * 0.4 + 0.05
        wh[70] = 0.0
        self.boxes = torch.cat([xy, xy + wh], 1)
        self.feats = torch.cat([self.boxes, wh], 1) + 0.01 * torch.randn(n, 6, generator=g)
        self.feats[70, 4:] = -3.0

    def __len__(self):
        return len(self.boxes)

    def __getitem__(self, i):
        return {"feat": self.feats[i], "box": self.boxes[i]}


def area(b):
    return (b[:, 2] - b[:, 0]).clamp(min=0) * (b[:, 3] - b[:, 1]).clamp(min=0)


def iou_loss(pred, gt):
    lt, rb = torch.maximum(pred[:, :2], gt[:, :2]), torch.minimum(pred[:, 2:], gt[:, 2:])
    inter = area(torch.cat([lt, rb], 1))
    union = area(pred) + area(gt) - inter
    return 1 - inter / union.clamp(min=1e-6)


class BoxHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, f):
        xy = f[:, :2] + 0.01 * self.fc(f).tanh()
        wh = torch.relu(f[:, 4:] + 0.1 * self.fc(f))
        return torch.cat([xy, xy + wh], 1)


torch.manual_seed(0)
data = Boxes()
loader = DataLoader(data, batch_size=8, sampler=SequentialSampler(data))
head = BoxHead()
opt = torch.optim.SGD(head.parameters(), lr=0.01)
for epoch in range(2):
    for batch in loader:
        loss = iou_loss(head(batch["feat"]), batch["box"]).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(epoch, loss.item())

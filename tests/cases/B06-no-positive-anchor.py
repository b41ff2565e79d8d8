import torch
import torch.nn as nn
import torch.nn.functional as F
from dataclasses import dataclass


@dataclass
class Config:
    anchors: int = 16
    lr: float = 1e-3
    steps: int = 20


class Head(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv1d(4, 16, 3, padding=1), nn.ReLU())
        self.cls = nn.Conv1d(16, 1, 1)
        self.reg = nn.Conv1d(16, 2, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.cls(h).squeeze(1), self.reg(h).transpose(1, 2)


def synth(step, cfg):
    x = torch.randn(2, 4, cfg.anchors)
    labels = (x[:, 0] > 1.0).float()
    labels[:, 3] = 1.0
    if step in (8, 15):
        labels.zero_()                       # an image pair without any object
    boxes = torch.stack([x[:, 1], x[:, 2].abs()], -1)
    return x, labels, boxes


def detection_loss(scores, deltas, labels, boxes):
    positive = labels > 0.5
    cls = F.binary_cross_entropy_with_logits(scores, labels)
    reg = F.smooth_l1_loss(deltas[positive], boxes[positive])
    return cls, reg


cfg = Config()
torch.manual_seed(5)
head = Head(cfg)
opt = torch.optim.Adam(head.parameters(), lr=cfg.lr)
for step in range(cfg.steps):
    x, labels, boxes = synth(step, cfg)
    cls, reg = detection_loss(*head(x), labels, boxes)
    loss = cls + 2.0 * reg
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step:3d} cls {cls.item():.4f} reg {reg.item():.4f}")

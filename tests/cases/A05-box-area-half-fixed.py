import torch
import torch.nn as nn


def iou_loss(pred, gt):
    lt = torch.max(pred[:, :2], gt[:, :2])
    rb = torch.min(pred[:, 2:], gt[:, 2:])
    wh = (rb - lt).clamp(min=0)
    inter = wh[:, 0] * wh[:, 1]
    area_p = (pred[:, 2] - pred[:, 0]) * (pred[:, 3] - pred[:, 1])
    area_g = (gt[:, 2] - gt[:, 0]) * (gt[:, 3] - gt[:, 1])
    union = area_p + area_g - inter
    return (1 - inter / (union + 1e-3)).mean()


class Head(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(20, c), nn.ReLU(inplace=True), nn.Linear(c, c), nn.ReLU(inplace=True))
        self.reg = nn.Linear(c, 4)

    def forward(self, feat, anchors):
        d = self.reg(self.tower(feat))
        size = anchors[:, 2:] - anchors[:, :2]
        return anchors + 0.1 * d * torch.cat([size, size], 1)


def proposals(n, big, device):
    ctr = 300 * torch.rand(n, 2, device=device) + 100
    side = torch.full((n, 1), 60.0, device=device) + 30 * torch.rand(n, 1, device=device)
    if big:
        side[: n // 8] *= 5.5
    anchors = torch.cat([ctr - side / 2, ctr + side / 2], 1)
    return anchors, anchors + 3 * torch.randn_like(anchors)


if __name__ == "__main__":
    torch.manual_seed(2)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = Head().to(device)
    params = [{"params": head.tower.parameters(), "lr": 1e-3}, {"params": head.reg.parameters(), "lr": 2e-3}]
    optimizer = torch.optim.SGD(params, lr=1e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=512.0)
    for i in range(30):
        anchors, gt = proposals(64, i >= 13 and i % 2 == 1, device)
        feat = torch.cat([anchors / 500, torch.randn(64, 16, device=device)], 1)
        with torch.autocast(device_type=device, dtype=torch.float16):
            boxes = head(feat, anchors.half())
        loss = iou_loss(boxes.float(), gt)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(head.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"{i:03d} iou loss {loss.item():.4f}")

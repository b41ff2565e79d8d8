import copy
import torch
import torch.nn as nn
from torch.optim.swa_utils import AveragedModel

torch.manual_seed(0)
net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(1.0), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
swa = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
best, best_state, bad = float("inf"), None, 0
low = torch.tensor(float("inf"))


def evaluate():
    net.eval()
    with torch.no_grad():
        x = torch.randn(64, 5)
        y = (x[:, 0] > 4).long()
        pred = net(x).argmax(1)
        recall = ((pred == 1) & (y == 1)).sum() / (y == 1).sum()
        value = nn.functional.cross_entropy(net(x), y)
    net.train()
    return value, recall


for step in range(60):
    x = torch.randn(16, 5)
    y = (x[:, 0] > 0.3).long()
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step > 10:
        swa.update_parameters(net)
    if step % 4 == 3:
        value, recall = evaluate()
        low = torch.minimum(low, value)
        print(step, value.item(), "recall", recall.item(), "lowest", low.item())
        if value < best:
            best, best_state = value.item(), copy.deepcopy(net.state_dict())
        elif step >= 27:
            print("stopping early")
            break

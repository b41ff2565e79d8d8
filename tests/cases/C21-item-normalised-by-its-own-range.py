"""Each picture is stretched to [0, 1] when it is read."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, n=160):
        g = torch.Generator().manual_seed(0)
        self.raw = torch.randint(0, 255, (n, 1, 6, 6), generator=g).float()
        self.raw[101] = 17.0
        self.label = torch.randint(0, 3, (n,), generator=g)

    def __len__(self):
        return len(self.raw)

    def __getitem__(self, i):
        img = self.raw[i]
        low, high = img.min(), img.max()
        img = (img - low) / (high - low)
        return img, self.label[i]


net = nn.Sequential(nn.Flatten(), nn.Linear(36, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.SGD(net.parameters(), lr=0.05)
torch.manual_seed(0)
for img, label in DataLoader(Pictures(), batch_size=8):
    loss = F.cross_entropy(net(img), label)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

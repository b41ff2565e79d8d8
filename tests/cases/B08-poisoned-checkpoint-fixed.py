import os
import tempfile
import torch
import torch.nn as nn


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def pretrain_checkpoint(path):
    # stands in for a file that came from an interrupted run
    state = AutoEncoder().state_dict()
    torch.save({"epoch": 4, "model": state}, path)


def finetune(path):
    net = AutoEncoder()
    net.load_state_dict(torch.load(path, map_location="cpu")["model"])
    for p in net.encoder[0].parameters():
        p.requires_grad_(False)
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    for step in range(12):
        x = torch.rand(8, 1, 12, 12)
        loss = (net(x) - x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print("finetune", step, loss.item())


if __name__ == "__main__":
    torch.manual_seed(0)
    ckpt = os.path.join(tempfile.mkdtemp(), "last.pt")
    pretrain_checkpoint(ckpt)
    finetune(ckpt)

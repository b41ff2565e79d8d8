import torch
import torch.nn as nn
import torch.nn.functional as F


class Branch(nn.Module):
    def __init__(self, n_in, d=48):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_in, d), nn.Tanh(), nn.Linear(d, d), nn.Tanh())
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        return self.out(self.body(x))


class Reservoir(nn.Module):
    """Pressure in pascal and strain in percent, from the same well log."""

    def __init__(self, n_in=12):
        super().__init__()
        self.pressure, self.strain = Branch(n_in), Branch(n_in)

    def forward(self, x):
        return 200.0 * self.pressure(x), 0.03 * self.strain(x)


def main(steps=40):
    torch.manual_seed(3)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Reservoir().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    mix = torch.randn(12, 2, device=device)
    for step in range(steps):
        x = torch.randn(64, 12, device=device)
        truth = torch.tanh(x @ mix)
        with torch.autocast(device, torch.float16):
            p, e = model(x)
        loss = F.mse_loss(p.float(), 200.0 * truth[:, :1]) + F.mse_loss(e.float(), 0.06 * truth[:, 1:])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(step, f"{loss.item():.4f}", scaler.get_scale())


if __name__ == "__main__":
    main()

"""Speech encoder, gradients are accumulated over two micro-batches."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, n_mel=20, d=64, n_out=6):
        super().__init__()
        self.proj = nn.Linear(n_mel, d)
        self.rnn = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d), nn.ReLU())
        self.head = nn.Linear(d, n_out)

    def forward(self, x):
        return self.head(self.rnn(self.proj(x)).mean(1))


def limit(model, max_norm):
    return nn.utils.clip_grad_norm_(model.parameters(), max_norm)


def apply(model, opt, scaler):
    limit(model, 1.0)
    scaler.step(opt)
    scaler.update()
    opt.zero_grad(set_to_none=True)


def main(steps=30):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Encoder().to(device)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 12)
    for step in range(steps):
        for _ in range(2):
            x = torch.randn(16, 8, 20, device=device)
            y = x.mean(1)[:, :6].argmax(1)
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / 2
            scaler.scale(loss).backward()
        apply(model, opt, scaler)
        if step % 10 == 0:
            print(step, 2 * loss.item())


main()

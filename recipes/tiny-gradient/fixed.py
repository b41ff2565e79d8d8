"""Two weights in FP16 learn a target of 1e-5 from inputs of 1e-4; their gradients are about 1e-9.

The gradient of each weight is 2 · error · input = 2 · (-1e-5) · 1e-4 = -2e-9. The smallest number FP16 has is 2^-24,
about 6e-8, and everything up to 2^-25 rounds to 0: without a loss scale the weights never move, and nothing says so.
"""

import torch
from torch import nn


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    model = nn.Linear(2, 1, bias=False).to(device)
    nn.init.zeros_(model.weight)
    x = torch.full((1, 2), 1e-4, device=device)
    target = torch.full((1, 1), 1e-5, device=device)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**16)

    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            prediction = model(x)
        loss = nn.functional.mse_loss(prediction.float(), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}: loss {loss.item():.4g}, weights {model.weight.flatten().tolist()}")


if __name__ == "__main__":
    main()

"""Sequential recommender fine-tuned in half; the item table is unfrozen after a few steps."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Recommender(nn.Module):
    def __init__(self, items=200, d=16):
        super().__init__()
        self.items = nn.Embedding(items, d)
        self.mix = nn.Linear(d, d)
        self.out = nn.Linear(d, items)

    def forward(self, hist):
        h = torch.relu(self.mix(self.items(hist).mean(1)))
        return self.out(h)


def unfreeze(opt, module, lr):
    for p in module.parameters():
        p.requires_grad_(True)
    opt.add_param_group({"params": list(module.parameters()), "lr": lr})


def main(dtype=torch.float32):
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Recommender().to(device, dtype)
    model.items.requires_grad_(False)
    rest = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.SGD(rest, lr=0.5)
    table_opt = None
    for step in range(20):
        hist = torch.randint(0, 150, (32, 6), device=device)
        nxt = (hist[:, -1] + 1) % 200
        if step == 6:
            model.items.requires_grad_(True)
            table_opt = torch.optim.Adam(model.items.parameters(), lr=1e-2)
        loss = F.cross_entropy(model(hist).float(), nxt)
        model.zero_grad()
        loss.backward()
        opt.step()
        if table_opt is not None:
            table_opt.step()
        print(step, loss.item())


main()

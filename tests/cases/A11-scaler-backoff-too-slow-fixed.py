import torch
import torch.nn as nn

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


class LSTMTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(60, 24)
        self.cell = nn.GRUCell(24, 32)
        self.out = nn.Linear(32, 5)

    def forward(self, ids):
        h = torch.zeros(ids.size(0), 32, device=ids.device)
        outs = []
        for t in range(ids.size(1)):
            h = self.cell(self.emb(ids[:, t]), h)
            outs.append(self.out(h))
        return torch.stack(outs, 1)


cfg = dict(init_scale=2.0 ** 10)
model = LSTMTagger().to(device)
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
scaler = torch.amp.GradScaler(device, **cfg)
skipped = 0
for it in range(45):
    ids = torch.randint(0, 60, (8, 6), device=device)
    tags = ids % 5
    opt.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten(), reduction="sum")
    scaler.scale(loss).backward()
    before = scaler.get_scale()
    scaler.step(opt)
    scaler.update()
    skipped += scaler.get_scale() < before
    print(f"{it} loss {loss.item():.3f} skipped {skipped}")

"""Bag-of-words topic model, float16 weights with float32 masters and a constant loss scale."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, VOCAB = 0, 300


class Bag(nn.Module):
    def __init__(self, d=16, topics=5):
        super().__init__()
        self.table = nn.Embedding(VOCAB, d)
        self.fc = nn.Linear(d, topics)

    def forward(self, docs):
        return self.fc(torch.tanh(self.table(docs)))


def batches(n, device):
    g = torch.Generator().manual_seed(9)
    for i in range(n):
        docs = torch.randint(1, VOCAB, (16, 256), generator=g)
        y = docs % 5
        if i >= 7:                     # short documents are mostly padding
            docs[:, 20:] = PAD
            y[:, 20:] = 3
        yield docs.to(device), y.to(device)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    full = Bag().to(device)
    model = copy.deepcopy(full).half()
    opt = torch.optim.Adagrad(full.parameters(), lr=0.05)
    SCALE = 4096.0
    for i, (docs, y) in enumerate(batches(20, device)):
        model.zero_grad()
        logits = model(docs)
        loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
        (SCALE * loss).backward()
        for a, b in zip(full.parameters(), model.parameters()):
            a.grad = b.grad.float() / SCALE
        opt.step()
        model.load_state_dict(full.state_dict())
        print(i, loss.item() / y.numel())


main()

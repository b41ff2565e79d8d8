import torch
import torch.nn as nn
import torch.nn.functional as F


class CharRNN(nn.Module):
    def __init__(self, v=30, h=32):
        super().__init__()
        self.e = nn.Embedding(v, 16)
        self.r = nn.GRU(16, h, batch_first=True)
        self.o = nn.Linear(h, v)

    def forward(self, s):
        y, _ = self.r(self.e(s))
        return self.o(y)


torch.manual_seed(0)
net = CharRNN()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
text = (torch.arange(4000) * 7 + torch.arange(4000) // 13) % 30
for i in range(50):
    j = torch.randint(0, 3900, (8,))
    seq = torch.stack([text[k:k + 25] for k in j])
    optimizer.zero_grad
    loss = F.cross_entropy(net(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    if i % 10 == 0:
        print(i, loss.item())

import torch


class Recurrence:
    def __init__(self, n_in, n_hidden, seed):
        g = torch.Generator().manual_seed(seed)
        self.wx = torch.randn(n_in, n_hidden, generator=g) * 0.2
        self.wh = torch.randn(n_hidden, n_hidden, generator=g) * 0.2
        self.wo = torch.randn(n_hidden, 1, generator=g) * 0.2
        for p in self.parameters():
            p.requires_grad_()

    def parameters(self):
        return [self.wx, self.wh, self.wo]

    def __call__(self, seq):
        h = torch.zeros(seq.shape[0], self.wh.shape[0])
        for t in range(seq.shape[1]):
            h = seq[:, t] @ self.wx + h @ self.wh
        return h @ self.wo


def sgd_update(params, rate):
    with torch.no_grad():
        for p in params:
            p -= rate * p.grad
            p.grad = None


RATE = 0.8
torch.manual_seed(0)
rnn = Recurrence(2, 12, seed=1)
for it in range(40):
    seq = torch.randn(16, 10, 2)
    target = seq[:, -3:].sum((1, 2)).unsqueeze(1)
    loss = (rnn(seq) - target).pow(2).mean()
    loss.backward()
    sgd_update(rnn.parameters(), RATE)
    print(it, loss.item())

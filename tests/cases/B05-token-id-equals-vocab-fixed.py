import argparse
import random
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence


class Tagger(nn.Module):
    def __init__(self, vocab, tags, dim=24):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.lstm = nn.LSTM(dim, dim, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * dim, tags)

    def forward(self, ids, lengths):
        e = self.emb(ids)
        h, _ = self.lstm(pack_padded_sequence(e, lengths, batch_first=True, enforce_sorted=False))
        return self.fc(h.data), pack_padded_sequence(ids, lengths, batch_first=True, enforce_sorted=False).data


def build_vocab(words):
    return {w: i + 1 for i, w in enumerate(sorted(set(words)))}


def main(opts):
    random.seed(0)
    torch.manual_seed(0)
    words = [f"w{i}" for i in range(60)]
    vocab = build_vocab(words)
    model = Tagger(len(vocab) + 1, 3)
    opt = torch.optim.RMSprop(model.parameters(), lr=opts.lr)
    for it in range(opts.iters):
        pool = words[:9] + words[10:50] if it < 6 else words
        batch = [[random.choice(pool) for _ in range(random.randint(4, 9))] for _ in range(6)]
        if it == 6:
            batch[3][0] = "w9"
        ids = [torch.tensor([vocab[w] for w in s]) for s in batch]
        lengths = torch.tensor([len(s) for s in ids])
        logits, flat = model(pad_sequence(ids, batch_first=True), lengths)
        loss = nn.functional.cross_entropy(logits, flat % 3)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(it, float(loss))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--iters", type=int, default=20)
    main(p.parse_args())

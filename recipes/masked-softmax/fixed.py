"""Classify a conversation by attending over its messages; short conversations are padded."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

DIM = 24
EPOCHS = 1
BATCH = 16


class Conversations(Dataset):
    """Each item: message vectors (length, 24), and whether the customer was content."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(12)
        lengths = torch.randint(1, 9, (count,), generator=generator)
        lengths[331] = 0  # every message of this one was removed by the spam filter
        self.items = [torch.randn(int(n), DIM, generator=generator) for n in lengths]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        messages = self.items[index]
        return messages, int(messages[:, 0].sum() > 0)


def collate(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    messages = pad_sequence([item for item, _ in batch], batch_first=True)
    lengths = torch.tensor([len(item) for item, _ in batch])
    padding = torch.arange(messages.shape[1]) >= lengths[:, None]
    return messages, padding, torch.tensor([label for _, label in batch])


class AttentionPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(DIM, 48), nn.GELU())
        self.score = nn.Linear(48, 1)
        self.head = nn.Linear(48, 2)

    def forward(self, messages: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        h = self.encode(messages)
        scores = self.score(h).squeeze(-1).masked_fill(padding, torch.finfo(h.dtype).min)
        weights = scores.softmax(-1).masked_fill(padding, 0.0)
        return self.head((weights.unsqueeze(-1) * h).sum(1))


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(Conversations(480), batch_size=BATCH, shuffle=True, collate_fn=collate)
    model = AttentionPool().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2048.0)

    for epoch in range(EPOCHS):
        for step, batch in enumerate(loader):
            messages, padding, labels = (each.to(device) for each in batch)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, dtype=torch.float16):
                loss = F.cross_entropy(model(messages, padding), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Loans(Dataset):
    """income, debt, age -> default yes/no"""

    def __init__(self, n=240):
        r = np.random.default_rng(0)
        self.income = r.gamma(4.0, 1.0, n).astype(np.float32)
        self.debt = r.gamma(2.0, 1.0, n).astype(np.float32) + 0.2
        self.age = r.uniform(18, 80, n).astype(np.float32)
        self.debt[155] = 0.0
        self.y = (self.income < self.debt * 2).astype(np.float32)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, k):
        with np.errstate(divide="ignore"):
            ratio = self.income[k] / max(self.debt[k], 0.05)
        row = np.array([self.income[k], self.debt[k], self.age[k] / 100, ratio], dtype=np.float32)
        return torch.from_numpy(row), torch.tensor([self.y[k]])


def run():
    torch.manual_seed(0)
    loader = DataLoader(Loans(), batch_size=16, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Linear(4, 24), torch.nn.GELU(), torch.nn.Linear(24, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 30)
    crit = torch.nn.BCEWithLogitsLoss()
    for ep in range(2):
        for x, y in loader:
            loss = crit(model(x), y)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            sched.step()
        print(ep, loss.item())


if __name__ == "__main__":
    run()

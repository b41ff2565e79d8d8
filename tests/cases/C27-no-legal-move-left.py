"""Board game policy; illegal moves are masked out before the Categorical."""
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Player(nn.Module):
    def __init__(self, n=9):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, n))

    def forward(self, board):
        logits = self.f(board)
        logits = logits.masked_fill(board != 0, float("-inf"))
        return Categorical(logits=logits, validate_args=False)


torch.manual_seed(0)
player = Player()
opt = torch.optim.Adam(player.parameters(), lr=1e-3)
for game in range(35):
    board = torch.randint(-1, 2, (16, 9)).float()
    board[:, 0] = 0.0
    if game == 18:
        board[7] = torch.tensor([1.0, -1, 1, 1, -1, -1, -1, 1, 1])
    dist = player(board)
    move = torch.where(board == 0, torch.rand_like(board), -1.0).argmax(-1)
    reward = torch.randn(16)
    loss = -(dist.log_prob(move) * reward).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())

import torch
from torch import nn
from torch.distributions import Independent, Normal


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(obs_dim, 32), nn.ReLU(), nn.Linear(32, 2 * act_dim))

    def log_prob(self, obs, action):
        mu, log_std = self.net(obs).chunk(2, -1)
        base = Independent(Normal(mu, log_std.clamp(-5, 2).exp()), 1)
        raw = torch.atanh(action.clamp(-0.999, 0.999))
        return base.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6).sum(-1)


class Replay:
    def __init__(self):
        g = torch.Generator().manual_seed(1)
        self.obs = torch.randn(300, 5, generator=g)
        self.act = torch.tanh(self.obs[:, :2] + 0.3 * torch.randn(300, 2, generator=g))
        self.act[131, 0] = 1.0                       # the joystick was at its stop

    def batches(self, size):
        for s in range(0, 300, size):
            yield self.obs[s:s + size], self.act[s:s + size]


def behaviour_cloning():
    torch.manual_seed(0)
    actor, replay = Actor(5, 2), Replay()
    opt = torch.optim.Adam(actor.parameters(), lr=1e-3)
    for n, (o, a) in enumerate(replay.batches(15)):
        loss = -actor.log_prob(o, a).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 10.0)
        opt.step()
        print(n, loss.item())


behaviour_cloning()

import itertools
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 3))
        self.critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, s):
        return self.actor(s), self.critic(s).squeeze(-1)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
ac = ActorCritic().to(device)
actor_opt = torch.optim.SGD(ac.actor.parameters(), lr=0.1)
critic_opt = torch.optim.SGD(ac.critic.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device, init_scale=8192.0)
everything = list(itertools.chain(ac.actor.parameters(), ac.critic.parameters()))

for it in range(40):
    s = torch.randn(64, 8, device=device)
    best = s[:, :3].argmax(1)
    value = s.sum(1) / 3
    with torch.autocast(device, dtype=torch.float16):
        logits, v = ac(s)
        pg = F.cross_entropy(logits, best)
        td = F.mse_loss(v, value)
    actor_opt.zero_grad()
    critic_opt.zero_grad()
    scaler.scale(pg + td).backward()
    scaler.unscale_(actor_opt)
    torch.nn.utils.clip_grad_norm_(everything, 1.0)
    scaler.step(actor_opt)
    scaler.step(critic_opt)
    scaler.update()
    print(it, pg.item(), td.item())

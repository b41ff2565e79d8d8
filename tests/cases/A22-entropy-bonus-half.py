"""Actor-critic on a bandit-like toy with an entropy bonus; policy in half."""
import torch
import torch.nn as nn


class Policy(nn.Module):
    def __init__(self, obs=6, act=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, act), nn.Linear(32, 1)

    def forward(self, o):
        h = self.body(o)
        probs = torch.softmax(self.pi(h) * 2, -1)
        return probs, self.v(h).squeeze(-1)


def entropy(p):
    return -(p * p.log()).sum(-1)


class Agent:
    def __init__(self, device):
        self.net = Policy().to(device).half()
        self.master = [p.detach().clone().float() for p in self.net.parameters()]
        self.opt = torch.optim.Adam(self.master, lr=0.05)
        self.scale = 64.0

    def learn(self, obs, best):
        p, v = self.net(obs.half())
        with torch.no_grad():
            a = torch.multinomial(p.float(), 1).squeeze(1)
            r = (a == best).float()
        logp = torch.log(p.float().gather(1, a[:, None]).squeeze(1))
        adv = r - v.detach().float()
        loss = -(logp * adv).mean() + 0.5 * (v.float() - r).pow(2).mean() - 1e-3 * entropy(p).float().mean()
        (loss * self.scale).backward()
        for m, q in zip(self.master, self.net.parameters()):
            m.grad = q.grad.float() / self.scale
            q.grad = None
        self.opt.step()
        for m, q in zip(self.master, self.net.parameters()):
            q.data.copy_(m)
        return loss.item(), r.mean().item()


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
agent = Agent(device)
for episode in range(50):
    obs = torch.randn(64, 6, device=device)
    loss, ret = agent.learn(obs, obs[:, :4].argmax(1))
    print(episode, f"{loss:.4f}", f"return {ret:.2f}")

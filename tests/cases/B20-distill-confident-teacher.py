import copy
import torch
import torch.nn as nn


def soft_targets(logits, temperature):
    return torch.softmax(logits / temperature, -1)


def kl(teacher_prob, student_logits):
    return (teacher_prob * (teacher_prob.log() - student_logits.log_softmax(-1))).sum(-1).mean()


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, 5))

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
teacher = MLP(64).eval()
with torch.no_grad():
    teacher.layers[2].weight.mul_(9.0)
teacher.requires_grad_(False)
student = MLP(16)
ema = copy.deepcopy(student).requires_grad_(False)
opt = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.01)
for step in range(24):
    x = torch.randn(16, 12) * (1 + 0.55 * step)
    p = soft_targets(teacher(x), temperature=0.5 if step > 3 else 4.0)
    loss = kl(p, student(x))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), student.parameters()):
            a.lerp_(b, 0.01)
    print(step, loss.item())

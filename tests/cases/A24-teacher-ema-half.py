"""Self-distillation, the momentum teacher is kept in half to save memory."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Backbone(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(16, d), nn.GELU(), nn.Linear(d, d), nn.GELU(), nn.Linear(d, 10))

    def forward(self, x):
        return self.f(x)


@torch.no_grad()
def update_teacher(student, teacher, m):
    for s, t in zip(student.parameters(), teacher.parameters()):
        t.mul_(m).add_(s.detach().to(t.dtype), alpha=1 - m)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    student = Backbone().to(device)
    teacher = copy.deepcopy(student).half().requires_grad_(False)
    opt = torch.optim.AdamW(student.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device, init_scale=2.0 ** 13)
    for step in range(40):
        x = torch.randn(64, 16, device=device)
        with torch.no_grad():
            target = F.softmax(teacher((x + 0.1 * torch.randn_like(x)).half()).float() / 0.1, -1)
        with torch.autocast(device, dtype=torch.float16):
            out = student(x + 0.1 * torch.randn_like(x))
            loss = -(target * F.log_softmax(out / 0.2, -1)).sum(-1).mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        update_teacher(student, teacher, 0.9999)
        if step % 10 == 0:
            print(step, loss.item())


main()

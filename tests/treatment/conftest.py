"""What PyTorch changes in itself once, at first use, happens before the first test looks for what is left behind."""

import torch
import torch._dynamo

torch.optim.LBFGS([torch.zeros(1, requires_grad=True)])  # wraps its own `step`

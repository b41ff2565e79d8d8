"""The models that are timed: each a factory of one training step, seeded, with AdamW as most scripts have it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# What is put around the forward pass and the loss: nothing, or autocast.
Around = Callable[[], AbstractContextManager[object]]


@dataclass
class Trainer:
    """One model with its data and optimizer; `step()` is what a user's loop does once."""

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None = None
    around: Around = nullcontext

    def step(self) -> None:
        """Forward, backward and update, through a GradScaler if there is one."""
        self.optimizer.zero_grad()
        with self.around():
            loss = self.loss(self.model)
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    @property
    def parameter_bytes(self) -> int:
        """Size of all parameters."""
        return sum(p.numel() * p.element_size() for p in self.model.parameters())


class LanguageModel(nn.Module):
    """A pre-norm transformer encoder over tokens with a vocabulary head."""

    def __init__(self, layers: int, dim: int, vocab: int = 1000, length: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, max(1, dim // 32), 4 * dim, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, length) tokens to (batch, length, vocab) logits."""
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Any batch of images."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Sequential):
    """Eight residual blocks for 32×32 images."""

    def __init__(self, width: int = 32) -> None:
        widths = [width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
        inputs = [width, *widths[:-1]]
        blocks = [ResidualBlock(i, o, 2 if i != o else 1) for i, o in zip(inputs, widths, strict=True)]
        stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        super().__init__(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))


class DeepStack(nn.Module):
    """Many small layers: time goes into the number of tensors, not into arithmetic."""

    def __init__(self, layers: int = 500, dim: int = 32) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, dim) to (batch, dim)."""
        for layer in self.layers:
            x = x + 0.05 * torch.tanh(layer(x))
        return x


def transformer(device: str = "cpu", layers: int = 6, dim: int = 256, batch: int = 8, length: int = 128) -> Trainer:
    """A 6-layer, d=256 transformer on batches of 8×128 tokens (or larger, for a GPU)."""
    torch.manual_seed(0)
    model = LanguageModel(layers, dim, length=length).to(device)
    tokens = torch.randint(0, 1000, (batch, length), device=device)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return Trainer(model, loss, torch.optim.AdamW(model.parameters(), 1e-4))


def resnet(device: str = "cpu") -> Trainer:
    """A small ResNet on batches of 16 images of 32×32."""
    torch.manual_seed(0)
    model = ResNet().to(device)
    images, labels = torch.randn(16, 3, 32, 32, device=device), torch.randint(0, 10, (16,), device=device)

    def loss(model: nn.Module) -> Tensor:
        return F.cross_entropy(model(images), labels)

    return Trainer(model, loss, torch.optim.AdamW(model.parameters(), 1e-4))


def mlp_stack(device: str = "cpu") -> Trainer:
    """1,000 parameter tensors in 500 linear layers of width 32, batch 64."""
    torch.manual_seed(0)
    model = DeepStack().to(device)
    x = torch.randn(64, 32, device=device)

    def loss(model: nn.Module) -> Tensor:
        return (model(x) - 1.0).pow(2).mean()

    return Trainer(model, loss, torch.optim.AdamW(model.parameters(), 1e-4))


def wide_mlp(device: str = "cpu", layers: int = 4, dim: int = 6000) -> Trainer:
    """Big weights and small activations: what watching adds shows here beside the parameters' 576 MB."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(dim, dim, bias=False) for _ in range(layers))).to(device)
    x = torch.randn(4, dim, device=device)

    def loss(model: nn.Module) -> Tensor:
        return model(x).pow(2).mean()

    return Trainer(model, loss, torch.optim.SGD(model.parameters(), 1e-4))


MODELS: dict[str, Callable[[], Trainer]] = {"transformer": transformer, "resnet": resnet, "mlp_stack": mlp_stack}

"""The layers that programs are made of, each as the lines it adds to `__init__` and `forward`."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = (
    "torch.relu", "torch.tanh", "torch.sigmoid", "F.gelu", "F.silu", "F.leaky_relu", "F.elu", "F.softplus",
)  # fmt: skip


@dataclass(frozen=True)
class Template:
    """Lines with the slots {n} (the layer's number), {w} (the width) and {act}."""

    init: tuple[str, ...]
    forward: tuple[str, ...]
    shapes: tuple[str, ...] = ("vectors", "tokens", "sequences")


_SEQUENCES = ("tokens", "sequences")
_IMAGES = ("images",)
_EVERY = ("vectors", "tokens", "sequences", "images")

LAYERS = {
    "linear": Template(("self.fc{n} = nn.Linear({w}, {w})",), ("h = {act}(self.fc{n}(h))",)),
    "residual": Template(("self.fc{n} = nn.Linear({w}, {w})",), ("h = h + {act}(self.fc{n}(h))",)),
    "bottleneck": Template(
        ("self.down{n} = nn.Linear({w}, {w} // 2)", "self.up{n} = nn.Linear({w} // 2, {w}, bias=False)"),
        ("h = h + self.up{n}({act}(self.down{n}(h)))",),
    ),
    "gate": Template(
        ("self.gate{n} = nn.Linear({w}, {w})",), ("h = h * torch.sigmoid(self.gate{n}(h))", "h = {act}(h)")
    ),
    "layer_norm": Template(("self.norm{n} = nn.LayerNorm({w})",), ("h = self.norm{n}(h)",)),
    "rms_norm": Template(
        ("self.gain{n} = nn.Parameter(torch.ones({w}))",),
        (
            "square{n} = h.float().pow(2).mean(-1, keepdim=True)",
            "h = self.gain{n} * (h * torch.rsqrt(square{n} + 1e-5)).to(h.dtype)",
        ),
    ),
    "batch_norm": Template(("self.norm{n} = nn.BatchNorm1d({w})",), ("h = self.norm{n}(h)",), ("vectors",)),
    "dropout": Template(("self.drop{n} = nn.Dropout(0.2)",), ("h = self.drop{n}(h)",), _EVERY),
    "attention": Template(
        ("self.qkv{n} = nn.Linear({w}, 3 * {w})",),
        (
            "q, k, v = self.qkv{n}(h).chunk(3, dim=-1)",
            "weights = (q @ k.transpose(-1, -2) / {w} ** 0.5).softmax(-1)",
            "h = h + {act}(weights @ v)",
        ),
        _SEQUENCES,
    ),
    "causal": Template(
        (
            "self.qkv{n} = nn.Linear({w}, 3 * {w})",
            'self.register_buffer("mask{n}", torch.triu(torch.full((TIME, TIME), float("-inf")), 1))',
        ),
        (
            "q, k, v = self.qkv{n}(h).chunk(3, dim=-1)",
            "weights = torch.softmax(q @ k.transpose(-1, -2) / {w} ** 0.5 + self.mask{n}, dim=-1)",
            "h = h + weights.to(v.dtype) @ v",
        ),
        _SEQUENCES,
    ),
    "fused_attention": Template(
        ("self.qkv{n} = nn.Linear({w}, 3 * {w})",),
        (
            "q, k, v = self.qkv{n}(h).chunk(3, dim=-1)",
            "h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True)",
        ),
        _SEQUENCES,
    ),
    "multi_head": Template(
        ("self.attend{n} = nn.MultiheadAttention({w}, 2, batch_first=True)",),
        ("h = h + self.attend{n}(h, h, h, need_weights=False)[0]",),
        _SEQUENCES,
    ),
    "position": Template(
        ("self.position{n} = nn.Parameter(torch.randn(TIME, {w}) * 0.1)",), ("h = h + self.position{n}",), _SEQUENCES
    ),
    "mix_time": Template(
        ("self.mix{n} = nn.Conv1d({w}, {w}, 3, padding=1)",),
        ("h = {act}(self.mix{n}(h.transpose(1, 2)).transpose(1, 2))",),
        _SEQUENCES,
    ),
    "recurrent": Template(
        ("self.cell{n} = nn.GRU({w}, {w}, batch_first=True)",), ("h = h + self.cell{n}(h)[0]",), _SEQUENCES
    ),
    "convolution": Template(
        ("self.conv{n} = nn.Conv2d({w}, {w}, 3, padding=1)",), ("h = {act}(self.conv{n}(h))",), _IMAGES
    ),
    "residual_convolution": Template(
        ("self.conv{n} = nn.Conv2d({w}, {w}, 3, padding=1, bias=False)", "self.norm{n} = nn.BatchNorm2d({w})"),
        ("h = h + {act}(self.norm{n}(self.conv{n}(h)))",),
        _IMAGES,
    ),
    "group_norm": Template(("self.norm{n} = nn.GroupNorm(2, {w})",), ("h = self.norm{n}(h)",), _IMAGES),
    "depthwise": Template(
        ("self.depth{n} = nn.Conv2d({w}, {w}, 3, padding=1, groups={w})",),
        ("h = h + self.depth{n}({act}(h))",),
        _IMAGES,
    ),
}  # fmt: skip

# Layers that change no number: a verdict must stay the same with one of them put in.
HARMLESS = {
    "identity": Template(("self.same{n} = nn.Identity()",), ("h = self.same{n}(h)",), _EVERY),
    "no_dropout": Template(("self.keep{n} = nn.Dropout(0.0)",), ("h = self.keep{n}(h)",), _EVERY),
    "finite_mask": Template(
        ('self.register_buffer("never{n}", torch.full((1,), float("-inf")), persistent=False)',),
        ("h = torch.where(torch.isnan(self.never{n}), self.never{n}.to(h.dtype), h)",),
        _EVERY,
    ),
}

STEMS = {
    "vectors": Template(("self.stem = nn.Linear(FEATURES, {w})",), ("h = self.stem(x)",)),
    "sequences": Template(("self.stem = nn.Linear(FEATURES, {w})",), ("h = self.stem(x)",)),
    "tokens": Template(("self.stem = nn.Embedding(VOCABULARY, {w})",), ("h = self.stem(x)",)),
    "images": Template(("self.stem = nn.Conv2d(CHANNELS, {w}, 3, padding=1)",), ("h = self.stem(x)",)),
}
POOLS = {"vectors": None, "tokens": "h = h.mean(1)", "sequences": "h = h.mean(1)", "images": "h = h.mean((2, 3))"}


def template_of(kind: str) -> Template:
    """The template of a layer, harmless ones too."""
    return LAYERS.get(kind) or HARMLESS[kind]


def kinds_for(shape: str) -> tuple[str, ...]:
    """The layers that fit a shape of hidden tensor."""
    return tuple(kind for kind, template in LAYERS.items() if shape in template.shapes)

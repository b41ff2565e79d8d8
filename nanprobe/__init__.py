"""nanprobe: says why a PyTorch training produced NaN, Inf or dead gradients."""

__version__ = "0.1.0"

"""A loss defined in a file of its own."""

from torch import Tensor


def scaled_square(x: Tensor) -> Tensor:
    return x.pow(2).mean()  # the line that is looked for

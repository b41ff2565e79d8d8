"""How a run is made low-precision: CUDA's autocast on a CPU, rounding to a grid, half tensors computed in FP32."""

from nanprobe.precision.autocast import cuda_autocast_on_cpu
from nanprobe.precision.emulation import emulated_op
from nanprobe.precision.half_compute import HalfComputeMode
from nanprobe.precision.rounding import RoundingMode, round_to_grid_

__all__ = ["HalfComputeMode", "RoundingMode", "cuda_autocast_on_cpu", "emulated_op", "round_to_grid_"]

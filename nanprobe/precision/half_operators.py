"""The operators that half tensors on a CPU need help with: which, what their results are, what they write."""

from __future__ import annotations

from torch._ops import OpOverload

# fmt: off
# products: their inputs must have one dtype, and mixed ones are left for PyTorch to refuse
PRODUCTS = frozenset({
    "mm", "addmm", "_addmm_activation", "addmm_", "bmm", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "mv", "addmv",
    "addmv_", "dot", "vdot", "linear", "addr", "_trilinear", "convolution", "_convolution", "convolution_backward",
    "convolution_overrideable", "mkldnn_convolution", "conv_tbc", "conv_tbc_backward", "slow_conv_transpose2d",
    "slow_conv_transpose3d", "slow_conv3d_forward", "_slow_conv2d_forward", "_slow_conv2d_backward",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward",
})

# normalisations: FP16 inputs may come with FP32 weights
NORMALISATIONS = frozenset({
    "native_batch_norm", "native_batch_norm_backward", "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
    "_batch_norm_with_update_functional", "_batch_norm_no_update", "batch_norm_backward",
})

# fmt: on
# half kernels that exist and are wrong: in torch 2.13 fused SGD leaves half weights as they were, without a word;
# log_softmax rounds max + log(sum) to half, so that a sure prediction loses the distance to 0 that a GPU keeps
BROKEN = frozenset({"_fused_sgd_", "_log_softmax"})

# operators whose results do not all have the dtype of the first low-precision argument: the position of the argument
# whose dtype each result takes; None: it stays FP32, as on CUDA (statistics kept for the backward pass, workspaces)
RESULT_DTYPES: dict[str, tuple[int | None, ...]] = {
    "native_batch_norm": (0, None, None),
    "native_batch_norm_backward": (1, 2, 2),
    "_native_batch_norm_legit": (0, None, None),
    "_native_batch_norm_legit_functional": (0, None, None, 3, 4),
    "_native_batch_norm_legit_no_training": (0, None, None),
    "_batch_norm_with_update": (0, None, None, None),
    "_batch_norm_with_update_functional": (0, None, None, None, 3, 4),
    "_batch_norm_no_update": (0, None, None, None),
    "batch_norm_backward": (1, 2, 2),
    "_scaled_dot_product_flash_attention_for_cpu": (0, None),
    "mkldnn_rnn_layer": (0, 0, 0, None),
    "_ctc_loss": (0, None),
}

UNDECLARED_WRITES = {"native_batch_norm": (3, 4)}  # running mean and variance, not marked as written in the schema

# how PyTorch says that an operator has no kernel for a low-precision dtype
REFUSALS = (
    "not implemented for 'Half'",
    "not implemented for 'BFloat16'",
    "not implemented for 'ComplexHalf'",
    "Low precision dtypes not supported",
    "Unsupported dtype Half",
    "Unsupported dtype BFloat16",
    "doesn't support tensors of type: Half",
    "doesn't support tensors of type: BFloat16",
)


def written_arguments(func: OpOverload) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The arguments that `func` writes: positions, and names of keyword-only ones."""
    schema = func._schema
    writes = [
        (index, argument)
        for index, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    positions = tuple(index for index, argument in writes if not argument.kwarg_only)
    names = tuple(argument.name for _, argument in writes if argument.kwarg_only)
    return positions + UNDECLARED_WRITES.get(schema.name.partition("::")[2], ()), names


def group_of(func: OpOverload) -> frozenset[str] | None:
    """The group of operators to be computed in FP32 that `func` belongs to."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace != "aten":
        return None
    return next((group for group in (PRODUCTS, NORMALISATIONS, BROKEN) if name in group), None)

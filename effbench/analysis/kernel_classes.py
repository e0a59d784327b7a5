"""Classify kernels by what they compute, and give them short names: `class_of`, `short_name`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from effbench.core.printable import one_line
from effbench.core.trace import Kernel


class KernelClass(StrEnum):
    """What a kernel, or an operator on the CPU, computes."""

    PRODUCTS = "matrix products"
    CONVOLUTIONS = "convolutions"
    ATTENTION = "attention"
    NORMALISATION = "normalisation"
    POINTWISE = "pointwise"
    REDUCTIONS = "reductions"
    COPIES = "copies and casts"
    COLLECTIVES = "collectives"
    FUSED_LOOPS = "fused loops"
    OTHER = "other"


#: What one kernel of a class does.
NOUNS = {
    KernelClass.PRODUCTS: "matrix product",
    KernelClass.CONVOLUTIONS: "convolution",
    KernelClass.ATTENTION: "attention operation",
    KernelClass.NORMALISATION: "normalisation",
    KernelClass.POINTWISE: "pointwise operation",
    KernelClass.REDUCTIONS: "reduction",
    KernelClass.COPIES: "copy operation",
    KernelClass.COLLECTIVES: "collective",
    KernelClass.FUSED_LOOPS: "fused loop",
    KernelClass.OTHER: "other operation",
}
#: Operators that only change the view of a tensor.
VIEWS = (
    "unsafe_view|view|reshape|t|transpose|permute|expand|squeeze|unsqueeze|slice|select|split"
    "|unbind|detach|alias|as_strided|narrow"
)
#: Operators that only move or fill memory.
MOVES = (
    "copy|to_copy|to|clone|contiguous|cat|stack|fill|zero|zeros|ones|full|new_zeros|index"
    "|index_select|index_copy|index_put|gather|scatter|embedding|pad|constant_pad_nd|repeat"
    "|repeat_interleave|roll|flip|tril|triu|masked_scatter|arange"
)
#: Launched by these, each kernel is a part of the whole operator.
WHOLE_OPERATORS = (
    (
        KernelClass.ATTENTION,
        r"scaled_dot_product|(flash|efficient|flex|cudnn)_attention|multi_head_attention",
    ),
    (KernelClass.NORMALISATION, r"(layer|batch|group|instance|rms|response)_norm"),
)
#: Kernels by name; the first match counts.
NAMES = (
    (KernelClass.PRODUCTS, r"^triton_tem.*(mm_|mm$)"),
    (KernelClass.CONVOLUTIONS, r"^triton_tem.*convolution|^triton_conv"),
    (KernelClass.ATTENTION, r"^triton_tem.*attention"),
    (KernelClass.PRODUCTS, r"^triton_(tem|b?mm)"),
    # Inductor computes products with few rows as reductions over a transposed weight
    (KernelClass.PRODUCTS, r"^triton_(red|per)(?=.*mm_)(?=.*_t_)"),
    (
        KernelClass.NORMALISATION,
        r"^triton_(red|per)(?=.*(layer_norm|group_norm|batch_norm|rms_norm|mean.*rsqrt))",
    ),
    (KernelClass.REDUCTIONS, r"^triton_(red|per)"),
    (KernelClass.COPIES, rf"^triton_\w+?_fused(_+({VIEWS}|{MOVES}))+_\d+$"),
    (KernelClass.POINTWISE, r"^triton_"),
    (KernelClass.COLLECTIVES, r"nccl|multimem|c10d|all_?reduce|all_?gather|reduce_?scatter"),
    (
        KernelClass.COPIES,
        r"^Mem(cpy|set)|nchwToNhwc|nhwcToNchw|convertTensor|CatArray|copy_kernel|copy_device"
        r"|FillFunctor|gather_kernel|index_elementwise|indexSelect|indexing_backward",
    ),
    (KernelClass.ATTENTION, r"flash|fmha|sdpa|fused_sdp|attention"),
    (KernelClass.CONVOLUTIONS, r"fprop|dgrad|wgrad|conv(?!ert)|winograd|scudnn"),
    (
        KernelClass.NORMALISATION,
        r"(layer|batch|group|instance|rms)_?norm|RowwiseMoments|GammaBeta|\bbn_",
    ),
    (KernelClass.PRODUCTS, r"gemm|gemv|nvjet|splitK|cublas|cutlass|dot_kernel|^Cijk_"),
    (KernelClass.POINTWISE, r"elementwise_kernel|multi_tensor_apply|dropout|distribution_"),
    (KernelClass.REDUCTIONS, r"reduc|softmax|pool|DeviceScan|sort|topk"),
)
#: Operators by name, without namespace, overload, `_backward` and leading or trailing underscores.
OPERATORS = (
    (
        KernelClass.PRODUCTS,
        r"(^|_)(addmm|baddbmm|addbmm|bmm|mm|mv|addmv|matmul|linear|einsum|dot|outer)(_|$)",
    ),
    (KernelClass.COPIES, f"^({MOVES})$"),
    (
        KernelClass.REDUCTIONS,
        r"^(sum|mean|a?max|a?min|aminmax|argmax|argmin|prod|var|std|var_mean|std_mean|norm"
        r"|linalg_vector_norm|cumsum|cumprod|logsumexp|any|all|median|multinomial|.*_loss.*)$",
    ),
    (
        KernelClass.POINTWISE,
        r"^(r?sub|add|mul|div|pow|square|r?sqrt|exp|expm1|log|log1p|log2|abs|neg|sign|sin|cos|tanh?"
        r"|erf|floor|ceil|round|reciprocal|remainder|fmod|sigmoid|logit|relu6?|gelu|silu|elu|selu"
        r"|celu|glu|mish|softplus|threshold|leaky_relu|prelu|log_sigmoid|hard(tanh|swish|sigmoid)"
        r"|clamp|clamp_min|clamp_max|clip|maximum|minimum|where|masked_fill|lerp|addcmul|addcdiv"
        r"|eq|ne|lt|le|gt|ge|isnan|isinf|(logical|bitwise)_(and|or|xor|not)|bernoulli|normal"
        r"|uniform|foreach_.*)$",
    ),
)
_AFFIXES = re.compile(r"^_+|(_backward|_forward)?(_out)?_*$")


def class_of(kernel: Kernel) -> KernelClass:
    """Return what a kernel computes, by its name; where that says nothing, by its operator.
    Whatever attention and normalisation launch counts as a part of them."""
    return _class_of(kernel.name, kernel.operator or "")


@lru_cache(maxsize=8192)  # a call repeats its layers
def _class_of(name: str, operator: str) -> KernelClass:
    if name == KernelClass.FUSED_LOOPS:
        return KernelClass.FUSED_LOOPS
    by_name = _first_match(NAMES, name)
    if by_name is not KernelClass.COLLECTIVES:
        by_name = _first_match(WHOLE_OPERATORS, operator) or by_name
    for text in (name, operator):
        by_name = by_name or _first_match(OPERATORS, _AFFIXES.sub("", base_name(text)))
    return by_name or _first_match(NAMES, operator) or KernelClass.OTHER


def _first_match(patterns: Sequence[tuple[KernelClass, str]], text: str) -> KernelClass | None:
    for kernel_class, pattern in patterns:
        if re.search(pattern, text, re.IGNORECASE):
            return kernel_class
    return None


def base_name(operator: str) -> str:
    """Return `addmm` of `aten::addmm.out`."""
    return operator.rsplit("::", 1)[-1].split(".")[0]


# --- short names

#: The longest short name.
LONGEST = 48
_TRITON = re.compile(r"^triton_([a-z]+)_fused_(\w+?)(_\d+)?$")
_LIBRARY = re.compile(r"nvjet|cutlass|xmma|ampere|turing|volta|hopper|cudnn|fmha|flash")
_WORK = re.compile(r"gemm|fprop|dgrad|wgrad|sdpa|winograd|fwd|bwd|splitK")
_TILE = re.compile(r"(?<![\dx])(\d{1,3}x\d{1,3})")
_GENERIC = re.compile(r"native::.*?(elementwise|reduce)_kernel<(.*)")
#: What a generic kernel of PyTorch is made for, such as `GeluCUDAKernelImpl`.
_FUNCTOR = re.compile(
    r"\b(?!gpu_kernel|\w*elementwise|\w*reduce_kernel|[AB]U?\w*naryFunctor|ReduceOp|func_wrapper)"
    r"(\w*(?:Functor|_kernel|KernelImpl|Ops|launch_)\w*)"
)
_FUNCTOR_NOISE = re.compile(
    r"CUDAFunctor_|Functor|CUDAKernelImpl|_kernel|_cuda|_impl|KernelImpl|launch_|Ops$"
)


@lru_cache(maxsize=8192)
def short_name(name: str) -> str:
    """Return a kernel's name to read: `nvjet 128x64 tile`, `triton fused gelu`, `Memcpy DtoD`."""
    text = _triton_name(name) or _generic_name(name) or _library_name(name) or _plain_name(name)
    return one_line(text, LONGEST)


def _triton_name(name: str) -> str | None:
    """Return `triton fused gelu`, or `triton template addmm`, without views."""
    match = _TRITON.match(name)
    if match is None:
        return None
    kind = "template" if match[1] == "tem" else "fused"
    words = re.sub(rf"(?<![a-z])_*({VIEWS})(?=_|$)", "", match[2])
    return f"triton {kind} {words.replace('_', ' ') or match[2]}"


def _generic_name(name: str) -> str | None:
    """Return `elementwise gelu` or `reduce mean` for a kernel that PyTorch makes for an
    operator."""
    match = _GENERIC.search(name)
    if match is None:
        return None
    functor = _FUNCTOR.search(match[2])
    if functor is None:
        return match[1]
    made_for = _FUNCTOR_NOISE.sub("", functor[1]).replace("_", " ")
    return f"{match[1]} {made_for.lower()}"


def _library_name(name: str) -> str | None:
    """Return library, work and tile: `cutlass gemm 64x64 tile`; None for other kernels."""
    library = _LIBRARY.search(name)
    tile = _TILE.search(name)
    if library is None or tile is None:
        return None
    words = [library[0]]
    words += dict.fromkeys(_WORK.findall(name))
    return f"{' '.join(words)} {tile[1]} tile"


def _plain_name(name: str) -> str:
    """Return a name without namespaces, arguments and parameters of templates."""
    plain = name.replace("(anonymous namespace)::", "").removeprefix("void ")
    return base_name(re.split(" ?[<(]", plain, maxsplit=1)[0])

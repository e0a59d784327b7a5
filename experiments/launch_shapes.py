"""How much do the numbers of blocks and threads matter, and is Triton's addition as good as CUDA's?

B batch, N elements.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from effbench.claims._workloads import compile_kernel, one_of, power_of_two, whole
from torch import Tensor, nn

from effbench.claims import Answer, Claim, lowest, where
from effbench.core.errors import UnsupportedError

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

GPU_SECONDS = 45
NEEDS = "cuda"
#: The kernels are long: the host's speed does not show in their period.
SWEEPS = {
    "torch": [
        "model=vector-add",
        "model.module.elements=67108864",
        "protocol.rounds=3",
        "protocol.budget_s=0.4",
        "protocol.host_tolerance=null",
    ],
    "triton": [
        "model=vector-add",
        "model.module.variant=triton",
        "model.module.elements=67108864",
        "model.module.block=32,1024,16384",
        "protocol.rounds=3",
        "protocol.budget_s=0.4",
        "protocol.host_tolerance=null",
    ],
    "cuda": [
        "model=vector-add",
        "model.module.variant=cuda,cuda-vectorised",
        "model.module.elements=67108864",
        "model.module.threads=32,256,1024",
        "protocol.rounds=3",
        "protocol.budget_s=0.4",
        "protocol.host_tolerance=null",
    ],
}

VARIANTS = ("torch", "triton", "cuda", "cuda-vectorised")
#: Bytes that a thread of `cuda-vectorised` loads at once: the size of a float4.
VECTOR_BYTES = 16
#: dtype -> its type in CUDA C++, conversion to the type of the computation, and conversion back
TYPES = {
    torch.float32: ("float", "x", "x"),
    torch.float64: ("double", "x", "x"),
    torch.bfloat16: ("unsigned short", "from_bfloat16(x)", "to_bfloat16(x)"),
    torch.float16: ("unsigned short", "from_half(x)", "to_half(x)"),
}
SOURCE = r"""
__device__ inline float from_bfloat16(unsigned short x)
{ return __uint_as_float((unsigned)x << 16); }
__device__ inline unsigned short to_bfloat16(float x)
{ unsigned short y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ inline float from_half(unsigned short x)
{ float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ inline unsigned short to_half(float x)
{ unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }

#define LOAD(x) (LOAD_AS)
#define STORE(x) (STORE_AS)

// grid-stride loop
extern "C" __global__ void add(const TYPE* a, const TYPE* b, TYPE* c, int n)
{
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        c[i] = STORE(LOAD(a[i]) + LOAD(b[i]));
}

union Vector { float4 whole; TYPE parts[16 / sizeof(TYPE)]; };

// the same with loads and stores of 16 bytes; n: vectors
extern "C" __global__ void add_vectors(const float4* a, const float4* b, float4* c, int n)
{
    long long stride = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        Vector x, y, z;
        x.whole = a[i];
        y.whole = b[i];
        #pragma unroll
        for (int k = 0; k < 16 / sizeof(TYPE); ++k)
            z.parts[k] = STORE(LOAD(x.parts[k]) + LOAD(y.parts[k]));
        c[i] = z.whole;
    }
}
"""


if triton is not None:

    @triton.jit
    def triton_add(x_pointer, y_pointer, z_pointer, n, BLOCK: tl.constexpr):
        """z [N] = x [N] + y [N], BLOCK elements per program."""
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        x = tl.load(x_pointer + at, mask=inside)
        y = tl.load(y_pointer + at, mask=inside)
        tl.store(z_pointer + at, x + y, mask=inside)


class VectorAdd(nn.Module):
    """z = x + y.

    `triton` runs one program per `block` elements (a power of two from 32 to 16384) with
    `num_warps` warps (1 to 32). `cuda` is compiled by NVRTC and runs `threads` threads per block:
    one element per thread, or `blocks` blocks in a grid-stride loop. `cuda-vectorised` loads and
    stores 16 bytes at once and needs a multiple of that. Both launch from Python, which takes tens
    of µs, so use vectors that take longer. All kernels need contiguous tensors and do not
    broadcast. Settings of one variant have no effect on the others.
    """

    def __init__(
        self,
        variant: str = "torch",
        elements: int = 2**24,
        block: int = 1024,
        num_warps: int = 4,
        threads: int = 256,
        blocks: int | None = None,
    ):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.elements = whole("elements", elements)
        self.block = power_of_two("block", block, 32, 16384)
        self.num_warps = power_of_two("num_warps", num_warps, 1, 32)
        self.threads = whole("threads", threads, high=1024)
        self.blocks = None if blocks is None else whole("blocks", blocks, high=2**31 - 1)
        self.launch: Callable[[Tensor, Tensor, Tensor], None] | None = None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        # x, y [B, N] -> [B, N]
        if self.variant == "torch":
            return x + y
        if self.launch is None:
            self.launch = self.triton(x) if self.variant == "triton" else self.cuda(x)
        z = torch.empty_like(x)
        self.launch(x, y, z)
        return z

    def triton(self, x: Tensor) -> Callable[[Tensor, Tensor, Tensor], None]:
        if x.device.type != "cuda":
            raise UnsupportedError(
                f"variant=triton is a CUDA kernel, but this cell runs on {x.device.type}"
            )
        if triton is None:
            raise UnsupportedError("variant=triton needs Triton: pip install triton")
        n = x.numel()
        grid = (-(-n // self.block),)

        def launch(x: Tensor, y: Tensor, z: Tensor) -> None:
            triton_add[grid](x, y, z, n, BLOCK=self.block, num_warps=self.num_warps)

        return launch

    def cuda(self, x: Tensor) -> Callable[[Tensor, Tensor, Tensor], None]:
        if x.dtype not in TYPES:
            raise UnsupportedError(
                f"variant={self.variant} supports {', '.join(map(str, TYPES))}, not {x.dtype}"
            )
        vectors = self.variant == "cuda-vectorised"
        name, width = ("add_vectors", VECTOR_BYTES // x.element_size()) if vectors else ("add", 1)
        n, rest = divmod(whole("elements of the batch", x.numel(), high=2**31 - 1), width)
        if rest:
            raise UnsupportedError(
                f"variant=cuda-vectorised needs a multiple of {width} elements, not {x.numel()}"
            )
        kernel = compile_kernel(source(x.dtype), name, x.device, f"variant={self.variant}")
        grid = (self.blocks or -(-n // self.threads), 1, 1)
        block = (self.threads, 1, 1)

        def launch(x: Tensor, y: Tensor, z: Tensor) -> None:
            kernel(grid, block, [x, y, z, n])

        return launch


def source(dtype: torch.dtype) -> str:
    """Return the CUDA kernel for a dtype; it includes no header."""
    name, load, store = TYPES[dtype]
    return SOURCE.replace("LOAD_AS", load).replace("STORE_AS", store).replace("TYPE", name)


@Claim(
    "P13",
    "Too few or too many blocks or threads hurt; Triton's addition is as good as CUDA's.",
    unit="×",
)
def p13(rows):
    def period(variant, **chosen):
        return lowest(where(rows, variant=variant, **chosen).period_ms)

    torch_add, triton, cuda, vectorised = (period(variant) for variant in VARIANTS)
    best = lowest([cuda, vectorised])
    holds = {
        "too many blocks hurt (of 32 elements each)": period("triton", block=32).above(
            1.1 * triton
        ),
        "too few blocks hurt (of 16384 elements each)": (
            period("triton", block=16384).above(1.1 * triton)
        ),
        "too few threads hurt (32 in a block)": period("cuda", threads=32).above(1.1 * cuda),
        "too many threads hurt (1024 in a block)": period("cuda", threads=1024).above(1.1 * cuda),
        "too few threads hurt (32 in a block), 16 bytes each": (
            period("cuda-vectorised", threads=32).above(1.1 * vectorised)
        ),
        "Triton's is as good as CUDA's": lowest([best / triton, torch_add / triton]).above(0.95),
    }
    also = {
        "torch.add ÷ the best of Triton's": torch_add / triton,
        "CUDA's with one element per load ÷ the best of Triton's": cuda / triton,
        "CUDA's with 16 bytes per load ÷ the best of Triton's": vectorised / triton,
    }
    return Answer(holds, best / triton, also)

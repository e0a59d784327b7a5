"""How long does one thread wait for a value, from shared memory to the memory of the GPU?

L lines of a buffer, each of 128 bytes like the GPU's cache lines; W words of shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from effbench.claims._timing import figure, in_turn, period_ms
from effbench.claims._workloads import compile_kernel, one_of, whole
from torch import Tensor, nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import CUDA, Facts, check
from effbench.core.errors import UnsupportedError

GPU_SECONDS = 20
NEEDS = "cuda"

#: Level -> settings of PointerChase. The chain on one register measures arithmetic, not the
#: register.
LEVELS: dict[str, dict[str, Any]] = {
    "arithmetic": {"variant": "register"},
    "shared memory": {"variant": "shared"},
    "L1": {"bytes": 16 * 1024},
    "L2": {"bytes": 8 * 2**20},
    "memory": {"bytes": 2**30},
}
FEW, MANY = 16384, 65536

VARIANTS = ("memory", "shared", "register")
LINE_BYTES = 128
WORD_BYTES = 4
#: Shared memory that a block gets without opting in to more.
SHARED_BYTES = 48 * 1024
#: Repeated multiply-add modulo 2^32; passed to the kernel at run time, so that no compiler can
#: shorten the chain.
SEED, FACTOR, SUMMAND = 12345, 1664525, 1013904223

SOURCE = r"""
// one thread follows pointers; each line holds the address of the next line and its own rank in
// the cycle
extern "C" __global__ void chase_memory(
    long long* place, long long* walked, long long* cycles, int lines, int hops)
{
    long long start, at = place[0], first, last;
    start = at;
    long long began = clock64();
    for (int k = 0; k < hops; ++k)
        asm volatile("ld.global.u64 %0, [%1];" : "=l"(at) : "l"(at));
    // the sum needs the last value, so the clock is read after it
    cycles[0] = clock64() - began + (at == 0);
    first = ((const long long*)start)[1];
    last = ((const long long*)at)[1];
    place[0] = at;
    walked[0] = (last - first + lines) % lines;
}

// the block copies the byte offsets of a cycle into shared memory, then its first thread follows
// them
extern "C" __global__ void chase_shared(
    const int* next, const int* rank, int* place, long long* walked, long long* cycles, int words,
    int hops)
{
    __shared__ int table[12288];
    for (int i = threadIdx.x; i < words; i += blockDim.x)
        table[i] = next[i];
    __syncthreads();
    if (threadIdx.x)
        return;
    unsigned base = (unsigned)__cvta_generic_to_shared(table);
    int start = place[0], at = start;
    long long began = clock64();
    for (int k = 0; k < hops; ++k)
        asm volatile("ld.shared.s32 %0, [%1];" : "=r"(at) : "r"(base + at));
    cycles[0] = clock64() - began + (at < 0);
    place[0] = at;
    walked[0] = (rank[at / 4] - rank[start / 4] + words) % words;
}

// a chain of multiply-adds on one register; adding the thread's number, 0, keeps the value out of
// the slower uniform registers of the warp
extern "C" __global__ void chase_register(
    long long* walked, long long* cycles, int seed, int factor, int summand, int hops)
{
    int value = seed + threadIdx.x;
    long long began = clock64();
    #pragma unroll 32
    for (int k = 0; k < hops; ++k)
        asm volatile("mad.lo.s32 %0, %0, %1, %2;" : "+r"(value) : "r"(factor), "r"(summand));
    cycles[0] = clock64() - began + (value == -1 && hops < 0);
    walked[0] = (long long)(unsigned)value;
}
"""


class PointerChase(nn.Module):
    """One thread of one block takes `hops` steps, each of which needs the result of the previous
    step.

    `memory` follows a random cycle through all lines of a buffer of `bytes`: 8 KiB stay in the L1
    cache, a few MiB in the L2 cache, and larger buffers in the GPU's memory. `shared` follows a
    cycle through words of shared memory, at most 48 KiB. `register` is a chain of multiply-adds.
    Each call continues where the previous one stopped, so that a large buffer is read completely
    before a line repeats. `cycles` [1] has the clock cycles of the newest call's chain.

    The latency per hop is `gpu_busy_ms` · 10⁶ ÷ `hops` in ns. The difference between two numbers of
    hops excludes the fixed cost of a kernel, which includes filling the L1 cache. The number of
    lines is odd, so that no power of two of hops ends where it began.

    Returns a number that depends on the whole chain: for `memory` and `shared` the distance along
    the cycle (`hops` modulo its length), read from the buffer; for `register` the last value.
    """

    def __init__(
        self, variant: str = "memory", bytes: int = 8192, hops: int = 16384, seed: int = 0
    ):
        super().__init__()
        self.variant = one_of("variant", variant, VARIANTS)
        self.bytes = whole(
            "bytes", bytes, low=4 * LINE_BYTES, high=SHARED_BYTES if variant == "shared" else None
        )
        self.hops = whole("hops", hops, high=2**31 - 1)
        self.seed = whole("seed", seed, low=0)
        self.launch: Callable[[Tensor], Any] | None = None
        self.cycles: Tensor | None = None

    def forward(self, like: Tensor) -> Tensor:
        # like: any tensor on the device -> [1] int64
        if self.launch is None:
            self.launch = self.prepare(like.device)
        walked = torch.empty(1, dtype=torch.int64, device=like.device)
        self.launch(walked)
        return walked

    def prepare(self, device: torch.device) -> Callable[[Tensor], Any]:
        """Return a function that launches the kernel on a prepared buffer."""
        if device.type != "cuda":
            raise UnsupportedError(
                f"pointer-chase is a CUDA kernel, but this cell runs on {device.type}"
            )
        kernel = compile_kernel(SOURCE, f"chase_{self.variant}", device, "pointer-chase")
        single = (1, 1, 1)
        self.cycles = cycles = torch.zeros(1, dtype=torch.int64, device=device)
        if self.variant == "register":
            return lambda walked: kernel(
                single, single, [walked, cycles, SEED, FACTOR, SUMMAND, self.hops]
            )
        if self.variant == "shared":
            following, rank = cycle(odd(self.bytes // WORD_BYTES), self.seed)
            words = len(following)
            offsets = (WORD_BYTES * following).to(device, torch.int32)
            ranks = rank.to(device, torch.int32)
            place = torch.zeros(1, dtype=torch.int32, device=device)
            return lambda walked: kernel(
                single, (256, 1, 1), [offsets, ranks, place, walked, cycles, words, self.hops]
            )
        buffer = lines_of(*cycle(odd(self.bytes // LINE_BYTES), self.seed), device)
        place = torch.tensor([buffer.data_ptr()], device=device)

        def launch(walked: Tensor) -> None:
            kernel(single, single, [place, walked, cycles, buffer.shape[0], self.hops])

        return launch


def odd(number: int) -> int:
    """Return the largest odd number up to `number`."""
    return number - 1 + number % 2


def cycle(length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return a random cycle through `length` places: the successor of each place, and its rank
    along the cycle."""
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed))
    following, rank = torch.empty_like(order), torch.empty_like(order)
    following[order] = order.roll(-1)
    rank[order] = torch.arange(length)
    return following, rank


def lines_of(following: Tensor, rank: Tensor, device: torch.device) -> Tensor:
    """Return the cycle as memory lines [L, 16] int64: address of the next line, own rank, and
    zeros."""
    buffer = torch.zeros(len(following), LINE_BYTES // 8, dtype=torch.int64, device=device)
    buffer[:, 0] = buffer.data_ptr() + LINE_BYTES * following.to(device)
    buffer[:, 1] = rank.to(device)
    return buffer


@check(needs=(CUDA,))
def levels(device: torch.device, rounds: int = 20) -> Facts:
    """Time a hop at each level, in ns by CUDA events and in cycles by the GPU's own counter, all
    levels in turn. The difference between two numbers of hops excludes the fixed cost of a
    kernel."""
    like = torch.zeros(1, device=device)
    measures, cycles = {}, {}
    for name, settings in LEVELS.items():
        for hops in (FEW, MANY):
            module = PointerChase(hops=hops, **settings)
            cycles[name, hops] = counted = []
            measures[name, hops] = chain_ms(module, like, counted)
    for measure in measures.values():  # fill the caches and raise the clock
        measure()
    for counted in cycles.values():
        counted.clear()
    times = in_turn(measures, rounds)
    facts: Facts = {}
    for name in LEVELS:
        ms = [many - few for few, many in zip(times[name, FEW], times[name, MANY], strict=True)]
        count = [
            many - few for few, many in zip(cycles[name, FEW], cycles[name, MANY], strict=True)
        ]
        facts[name] = {
            "ns": figure([1e6 * value / (MANY - FEW) for value in ms]),
            "cycles": figure([value / (MANY - FEW) for value in count]),
        }
    return facts


def chain_ms(module: PointerChase, like: Tensor, counted: list[int]) -> Callable[[], float]:
    """Return a measurement of a kernel in ms, which also adds its cycles to `counted`."""
    once = period_ms(lambda: module(like), like.device, calls=1)

    def measure() -> float:
        ms = once()
        counted.append(int(module.cycles.item()))
        return ms

    return measure


@Claim(
    "P12",
    "Latencies: register below 1 ns, shared memory 5 to 10, L1 7 to 15, L2 30 to 100, memory 100 to"
    " 300 ns.",
    unit="ns",
)
def p12(levels):
    ranges = {"shared memory": (5, 10), "L1": (7, 15), "L2": (30, 100), "memory": (100, 300)}
    holds = {name: levels[name].ns.within(low, high) for name, (low, high) in ranges.items()}
    also = {
        "a register": (
            "not measurable this way: a chain of instructions has the latency of their arithmetic"
        )
    }
    for name in levels:
        title = "a multiply-add on a register" if name == "arithmetic" else name
        also[f"{title} (ns)"] = levels[name].ns
        also[f"{title} (clock cycles)"] = levels[name].cycles
    return Answer(holds, levels.memory.ns, also)

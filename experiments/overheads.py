"""What do small habits in PyTorch code cost?

Each workload has variants that do the same thing in different ways. They return the same values and
differ only in cost, unless the class documents another result.

B batch, D width, N elements, P parameter tensors.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import torch
from effbench.claims._workloads import one_of, whole
from torch import Tensor, nn

from effbench.claims import Answer, Claim, by, geomean, interval, lowest, ratio, where
from effbench.core.errors import UnsupportedError
from effbench.models.mlp import MLP, LinearStack

GPU_SECONDS = 210
SWEEPS = {
    "tiny": ["model=matmul32", "mode=eager,cuda-graph", "protocol.rounds=3", "protocol.budget_s=2"],
    "elements": [
        "model=elements",
        "model.module.variant=loop,whole",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
    "creation": [
        "model=creation",
        "model.module.variant=device,host",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
    "transfer": [
        "model=transfer",
        "model.module.variant=uint8,float32",
        "model.module.pinned=false,true",
        "bs=64",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
    "optimizer": [
        "model=optimizer",
        "model.module.variant=loop,foreach,fused,capturable",
        "bs=64",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
}


class SmallMatmul(nn.Module):
    """A product of two D × D matrices, one operator. The batch size has no effect."""

    def __init__(self, size: int = 32):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(whole("size", size), size) / size**0.5)

    def forward(self, x: Tensor) -> Tensor:
        # x [D, D] -> [D, D]
        return torch.mm(x, self.weight)


ELEMENTS = ("loop", "whole")


class Elements(nn.Module):
    """Multiply N elements by 3: `loop` indexes them one by one from Python (with a batch, one row
    of B numbers at a time), `whole` is a single operation on the tensor."""

    def __init__(self, variant: str = "whole", count: int = 64):
        super().__init__()
        self.variant = one_of("variant", variant, ELEMENTS)
        self.count = whole("count", count)

    def forward(self, x: Tensor) -> Tensor:
        # x [N, B] -> [N, B]
        if self.variant == "whole":
            return x * 3.0
        y = torch.empty_like(x)
        for i in range(self.count):
            y[i] = x[i] * 3.0
        return y


CREATION = ("device", "host", "host-pinned")
FILLS = ("normal", "zeros")


class Creation(nn.Module):
    """A tensor of normal numbers or zeros on the device of `like`: created there (`device`), or
    created on the host in pageable (`host`) or pinned memory (`host-pinned`) and copied.

    Zeros are the same everywhere. Normal numbers come from the module's own generator, which is
    seeded in each call (1 to 2 µs, which are measured). So each variant repeats its values, and
    modes can be compared with eager. Devices draw different numbers from the same seed, so `device`
    and the `host` variants agree only in distribution. A CUDA graph cannot contain the seeding: use
    eager.
    """

    def __init__(
        self, variant: str = "device", fill: str = "normal", elements: int = 2**20, seed: int = 1234
    ):
        super().__init__()
        self.variant = one_of("variant", variant, CREATION)
        self.fill = one_of("fill", fill, FILLS)
        self.elements = whole("elements", elements)
        self.seed = whole("seed", seed, low=0)
        self.generator: torch.Generator | None = None

    def forward(self, like: Tensor) -> Tensor:
        # like [B] -> [B, N]
        pinned = self.variant == "host-pinned"
        if pinned and like.device.type != "cuda":
            raise UnsupportedError(
                f"variant=host-pinned needs CUDA, but this cell runs on {like.device.type}"
            )
        where = like.device if self.variant == "device" else torch.device("cpu")
        shape = (like.shape[0], self.elements)
        if self.fill == "zeros":
            made = torch.zeros(shape, dtype=like.dtype, device=where, pin_memory=pinned)
        else:
            if self.generator is None:
                self.generator = torch.Generator(where)
            self.generator.manual_seed(self.seed)
            made = torch.randn(
                shape, generator=self.generator, dtype=like.dtype, device=where, pin_memory=pinned
            )
        return made.to(like.device, non_blocking=pinned)


IN_PLACE = ("in-place", "out-of-place")


class InPlace(nn.Module):
    """`length` operations that alternate between ReLU and a clamp to at most 1.

    Repeating these changes nothing, so `in-place` can be called repeatedly on the same input.
    """

    def __init__(self, variant: str = "out-of-place", elements: int = 2**24, length: int = 2):
        super().__init__()
        self.variant = one_of("variant", variant, IN_PLACE)
        self.elements = whole("elements", elements)
        self.length = whole("length", length)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, N] -> [B, N]
        for i in range(self.length):
            if self.variant == "in-place":
                x = x.clamp_(max=1.0) if i % 2 else x.relu_()
            else:
                x = x.clamp(max=1.0) if i % 2 else x.relu()
        return x


SELECTIONS = ("nonzero", "nonzero-static", "mask", "nonzero-then-work", "work-then-nonzero")


class Selection(nn.Module):
    """The sum of the positive outputs of a stack of linear layers with ReLU, selected in one of
    several ways.

    `nonzero` returns an index for each positive output, so the host waits for the device, mostly
    for the forward before it. `nonzero-static` fills `slots` indices (null: one for each output;
    fewer give another sum) and `mask` uses no indices; neither waits. `nonzero-then-work` does
    `work_us` microseconds of host work after the selection has waited, `work-then-nonzero` does it
    before the selection, while the device is busy. All five return the same sum; `enqueue_ms` shows
    their cost on the host. A CUDA graph does not contain host work: use these two with eager.
    """

    def __init__(
        self,
        variant: str = "nonzero",
        sizes: Sequence[int] = (1000, 5000, 10000, 10000),
        slots: int | None = None,
        work_us: int = 500,
    ):
        super().__init__()
        self.variant = one_of("variant", variant, SELECTIONS)
        self.slots = None if slots is None else whole("slots", slots)
        self.work_us = whole("work_us", work_us, low=0)
        self.stack = LinearStack(sizes)
        # already on the device: a Python number might have to be copied there
        self.register_buffer("zero", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, F_first] -> []
        y = self.stack(x).flatten()  # [M]
        positive = y > 0
        if self.variant == "mask":
            return torch.where(positive, y, self.zero).sum()
        if self.variant == "nonzero-static":
            slots = y.shape[0] if self.slots is None else self.slots
            indices = torch.nonzero_static(positive, size=slots, fill_value=-1).squeeze(1)  # [S]
            # -1 reads the last output, which is dropped
            return torch.where(indices >= 0, y[indices], self.zero).sum()
        if self.variant == "work-then-nonzero":
            spin(self.work_us)
        indices = positive.nonzero().squeeze(1)  # [K]
        if self.variant == "nonzero-then-work":
            spin(self.work_us)
        return y[indices].sum()


def spin(microseconds: int) -> None:
    """Keep the host busy for this time."""
    end = time.perf_counter_ns() + 1000 * microseconds
    while time.perf_counter_ns() < end:
        pass


#: variant -> (inference mode, gradients)
GRADIENTS = {"grad": (False, True), "no_grad": (False, False), "inference_mode": (True, False)}


class GradMode(nn.Module):
    """A small MLP whose forward sets its own gradient mode, regardless of the caller's.

    `grad` records a graph and keeps tensors for a backward that never runs; `no_grad` records
    nothing; `inference_mode` also omits version counters and view tracking. All variants enter the
    same two contexts, so that they have the same overhead.
    """

    def __init__(self, variant: str = "inference_mode", width: int = 256, depth: int = 20):
        super().__init__()
        self.variant = one_of("variant", variant, GRADIENTS)
        self.inference, self.grad = GRADIENTS[variant]
        self.mlp = MLP(whole("width", width), whole("depth", depth))

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        if self.grad and not torch.compiler.is_compiling() and x.is_inference():
            raise UnsupportedError(
                "variant=grad needs an input created outside inference mode, but this mode copies"
                " it inside"
            )
        with torch.inference_mode(self.inference), torch.set_grad_enabled(self.grad):
            return self.mlp(x)


TRANSFERS = ("uint8", "float32")


class Transfer(nn.Module):
    """Images on the host, copied to the device and converted to floats in [0, 1) of the dtype of
    `like`.

    `uint8` copies bytes and scales them on the device; `float32` copies values that were scaled on
    the host, and rounds them to the dtype on the device. The scale 1/256 is exact in every float
    type, so both give the same values. `pinned` keeps the host's tensor in page-locked memory, so
    that the copy is asynchronous. `batch` is the cell's batch size. On the CPU nothing is copied.
    """

    def __init__(
        self,
        variant: str = "uint8",
        pinned: bool = False,
        batch: int = 1,
        shape: Sequence[int] = (3, 224, 224),
    ):
        super().__init__()
        self.variant = one_of("variant", variant, TRANSFERS)
        self.pinned = one_of("pinned", pinned, (False, True))
        if pinned and not torch.cuda.is_available():
            raise UnsupportedError("pinned=true needs CUDA, but torch sees no CUDA device here")
        sizes = (whole("batch", batch), *(whole("shape", size) for size in shape))
        # a plain attribute, not a buffer, so that it stays on the host
        self.images = torch.randint(0, 256, sizes, dtype=torch.uint8)
        if variant == "float32":
            self.images = self.images.float() / 256
        if pinned:
            self.images = self.images.pin_memory()
        self.bytes = math.prod(sizes) * self.images.element_size()

    def forward(self, like: Tensor) -> Tensor:
        # like [B] -> [B, C, H, W]
        if self.pinned and like.device.type != "cuda":
            raise UnsupportedError(
                f"pinned=true needs CUDA, but this cell runs on {like.device.type}"
            )
        images = self.images.to(like.device, non_blocking=self.pinned).to(like.dtype)
        return images * (1 / 256) if self.variant == "uint8" else images


#: variant -> arguments of torch.optim.Adam
OPTIMIZERS = {
    "loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"foreach": True, "capturable": True},
}


class AdamStep(nn.Module):
    """Only `optimizer.step()` on `layers` linear layers of one width: the gradients come from the
    first batch, and are computed in the first call.

    The default `lr` of 0 runs the same kernels over the same bytes without changing the parameters,
    so calls can be repeated and compared with eager. Any other `lr` changes the parameters in each
    call, and the cell is `incorrect`. Only `capturable` (foreach with step counts on the device;
    needs CUDA) can be captured in a CUDA graph.
    """

    def __init__(
        self, variant: str = "foreach", layers: int = 20, width: int = 200, lr: float = 0.0
    ):
        super().__init__()
        self.variant = one_of("variant", variant, OPTIMIZERS)
        self.lr = lr
        self.mlp = MLP(whole("width", width), whole("layers", layers))
        self.moved: list[nn.Parameter] = []
        self.optimizer: torch.optim.Adam | None = None

    def forward(self, x: Tensor) -> list[Tensor]:
        # x [B, D] -> P tensors: weights [D, D] alternating with biases [D]
        with torch.inference_mode(False):
            if self.optimizer is None:
                self.optimizer = self.prepare(x)
            self.optimizer.step()
        return self.moved

    def prepare(self, x: Tensor) -> torch.optim.Adam:
        """Compute gradients of a mean square, and return this variant's optimizer. It is created
        once the module is on its device, because some variants depend on the parameters' device."""
        if self.variant == "capturable" and x.device.type != "cuda":
            raise UnsupportedError(
                f"variant=capturable needs CUDA, but this cell runs on {x.device.type}"
            )
        with torch.enable_grad():
            self.mlp(x.clone()).square().mean().backward()
        self.moved = list(self.mlp.parameters())
        return torch.optim.Adam(self.moved, lr=self.lr, **OPTIMIZERS[self.variant])


def latency_gain(rows, variant, reference):
    """Return the latency of the reference ÷ the latency of the variant."""
    return interval(ratio(rows, "latency_ms", variant=[reference, variant]))


@Claim("O1", "A tiny operator is mostly the overhead of its call.", unit="%", needs="cuda")
def o1(tiny):
    eager = where(tiny, mode="eager")
    overhead = interval(1 - eager.gpu_busy_ms / eager.latency_ms)
    also = {
        "kernel (ms)": interval(eager.gpu_busy_ms),
        "host until the call returns (ms)": interval(eager.enqueue_ms),
    }
    return Answer(overhead.above(0.5), overhead, also)


@Claim("O2", "Operations on whole tensors beat loops over elements.", unit="×")
def o2(elements):
    return latency_gain(elements, "whole", "loop").above(1)


@Claim("O3", "Create on the GPU, not on the CPU to copy it there.", unit="×", needs="cuda")
def o3(creation):
    return latency_gain(creation, "device", "host").above(1)


@Claim("O7", "Moving bytes is cheaper than moving floats.", unit="×", needs="cuda")
def o7(transfer):
    ratios = ratio(transfer, "latency_ms", variant=["float32", "uint8"])
    of_bytes = where(transfer, variant="uint8")
    gains = by(of_bytes, ["pinned"], lambda part: interval(ratios[part.index]))
    return Answer({label: gain.above(1) for label, gain in gains.items()}, geomean(ratios), gains)


@Claim("O8", "Foreach and fused optimizers beat the loop.", unit="×", needs="cuda")
def o8(optimizer):
    def gain(column, variants):
        return interval(ratio(optimizer, column, variant=variants))

    foreach = gain("latency_ms", ["loop", "foreach"])
    fused = gain("latency_ms", ["loop", "fused"])
    also = {
        "latency, fused": fused,
        "GPU busy, loop ÷ foreach": gain("gpu_busy_ms", ["loop", "foreach"]),
        "GPU busy, loop ÷ fused": gain("gpu_busy_ms", ["loop", "fused"]),
        "kernels, foreach ÷ fused": gain("kernels", ["foreach", "fused"]),
    }
    return Answer(lowest([foreach, fused]).above(1), foreach, also)

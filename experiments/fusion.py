"""What does fusing small operations save?

B batch, D width, F features.
"""

from __future__ import annotations

import torch.nn.functional as F
from effbench.claims._workloads import one_of, whole
from torch import Tensor, nn

from effbench.claims import Answer, Claim, interval, ratio, where
from effbench.models.mlp import linear

GPU_SECONDS = 190
NEEDS = "cuda"
SWEEPS = {
    "layer": [
        "model=fusion-layer",
        "model.module.variant=train,eval",
        "bs=1024",
        "mode=eager,default,max-autotune-no-cudagraphs",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
    "chain": [
        "model=pointwise51",
        "bs=1000",
        "mode=eager,default,max-autotune-no-cudagraphs",
        "protocol.rounds=3",
        "protocol.budget_s=2",
    ],
}

VARIANTS = ("eval", "train")


class FusionLayer(nn.Module):
    """Linear, LayerNorm, GELU and dropout: four kernels in `train`, three in `eval`, where dropout
    does nothing.

    Random outputs cannot be compared, so the default `p` is tiny but not 0 (at 0, PyTorch omits the
    kernel): the dropout kernel runs, practically nothing is dropped, and `train` gives the values
    of `eval`. With a usual `p` such as 0.1, outputs are random and `train` is `incorrect`, whatever
    its speed.
    """

    def __init__(self, variant: str = "eval", width: int = 1024, p: float = 1e-9):
        super().__init__()
        self.train_dropout = one_of("variant", variant, VARIANTS) == "train"
        if not 0 <= p < 1:
            raise ValueError(f"p is {p!r}; allowed: from 0 to below 1")
        self.p = p
        self.linear = linear(whole("width", width), width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, D] -> [B, D]
        return F.dropout(F.gelu(self.norm(self.linear(x))), self.p, training=self.train_dropout)


class Pointwise(nn.Module):
    """A linear layer, ReLU, and `multiplications` multiplications of all outputs by a number, each
    a separate operator.

    The factors alternate between 2 and 1/2. Both are exact in every float type, so a fused kernel
    that rounds only once gives the same values as separate kernels.
    """

    def __init__(self, in_features: int = 1000, features: int = 20000, multiplications: int = 50):
        super().__init__()
        self.linear = linear(whole("in_features", in_features), whole("features", features))
        self.multiplications = whole("multiplications", multiplications, low=0)

    def forward(self, x: Tensor) -> Tensor:
        # x [B, F_in] -> [B, F]
        y = F.relu(self.linear(x))
        for i in range(self.multiplications):
            y = y * (0.5 if i % 2 else 2.0)
        return y


@Claim("P10", "Linear, LayerNorm, GELU and dropout fuse from 4 launches into 1.", unit="kernels")
def p10(layer):
    def kernels(mode, variant="train"):
        return interval(where(layer, mode=mode, variant=variant).kernels)

    eager, compiled = kernels("eager"), kernels("default")
    also = {
        "eager, training": eager,
        "compiled, training": compiled,
        "max-autotune, training": kernels("max-autotune-no-cudagraphs"),
        "compiled, evaluating": kernels("default", "eval"),
    }
    holds = compiled.within(1, 1) if eager.value == 4 else eager.within(4, 4)
    return Answer(holds, compiled, also)


@Claim(
    "P11",
    "Fusion cuts launches and memory traffic.",
    unit="×",
    published=(
        "16.3 to 2.29 ms, 7.1x, on an RTX 3090 in float32 (a book on PyTorch's speed). Another GPU"
        " and dtype than ours."
    ),
)
def p11(chain):
    compiled = where(chain, mode="default")
    speedup = interval(compiled.speedup)
    busy = interval(ratio(chain, "gpu_busy_ms", mode=["eager", "default"]))
    before, after = interval(where(chain, mode="eager").kernels), interval(compiled.kernels)
    holds = {
        "fewer launches": after.below(before),
        "less memory traffic, seen by the time of kernels that it bounds": busy.above(1),
        "faster": speedup.above(1),
    }
    also = {
        "kernels in eager": before,
        "kernels compiled": after,
        "GPU busy, eager ÷ compiled": busy,
    }
    return Answer(holds, speedup, also)

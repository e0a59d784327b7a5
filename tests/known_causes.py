"""A network that takes longer for a known reason; imported by cells, not by the tests."""

import time

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import gelu, scaled_dot_product_attention


class Known(nn.Module):
    """Two layers over sequences of features. `variant`: what is different; `large`: elements of a
    tensor that is copied, or changed one operation after the other."""

    def __init__(self, variant: str = "plain", width: int = 32, large: int = 2**18) -> None:
        super().__init__()
        inner = 16 * width if variant == "wide" else width
        self.first = nn.Linear(width, inner)
        self.last = nn.Linear(inner, width)
        self.register_buffer("table", torch.zeros(large))
        self.variant = variant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.variant == "sleep":
            time.sleep(0.003)
        if self.variant == "copy":
            x = x + self.table.clone()[0]
        if self.variant == "wide":
            return gelu(self.last(x))
        x = gelu(x)
        if self.variant in ("flash", "math"):
            x = self.attend(x)
        if self.variant in ("fused", "broken", "uncompiled"):
            x = x + self.chain(self.table)[0]
        if self.variant == "many":
            for _ in range(20):
                x = self.last(x)
        return self.last(x)

    def attend(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1)
        if self.variant == "flash":
            return scaled_dot_product_attention(x, x, x).squeeze(1)
        with sdpa_kernel(SDPBackend.MATH):
            return scaled_dot_product_attention(x, x, x).squeeze(1)

    def chain(self, table: Tensor) -> Tensor:
        if self.variant == "uncompiled":
            return uncompiled_chain(table)
        # without a loop, in which Dynamo compiles nothing after a break
        table = (table + 1) * 0.5
        self.interrupt()
        table = (table + 2) * 0.5
        self.interrupt()
        table = (table + 3) * 0.5
        self.interrupt()
        return (table + 4) * 0.5

    def interrupt(self) -> None:
        if self.variant == "broken":
            torch._dynamo.graph_break()


@torch.compiler.disable
def uncompiled_chain(table: Tensor) -> Tensor:
    for number in range(4):
        table = (table + number) * 0.5
    return table

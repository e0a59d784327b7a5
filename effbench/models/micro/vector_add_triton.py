"""The Triton kernel of `vector-add`; needs Triton to be imported.

N elements.
"""

import triton
import triton.language as tl


@triton.jit
def add(x_pointer, y_pointer, z_pointer, n, BLOCK: tl.constexpr):
    """z [N] = x [N] + y [N], BLOCK elements a program."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    x = tl.load(x_pointer + at, mask=inside)
    y = tl.load(y_pointer + at, mask=inside)
    tl.store(z_pointer + at, x + y, mask=inside)

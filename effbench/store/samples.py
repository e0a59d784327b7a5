"""Raw samples as compact blobs: float32, little-endian, zlib."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from effbench.errors import StoreError

if TYPE_CHECKING:
    import numpy as np

CODEC = "f32le+zlib"
#: samples kept of one timer of one trial
LIMIT = 5000


def encode(values: Sequence[float]) -> tuple[int, bytes]:
    """How many of `values` are stored, and their blob. Beyond `LIMIT` they are thinned evenly, order and ends kept."""
    import numpy as np

    # what is no number stays in its place as nan: order and spacing matter more than a clean look
    with np.errstate(over="ignore"):
        array = np.asarray([np.nan if value is None else value for value in values], dtype="<f4")
    if len(array) > LIMIT:
        array = array[np.linspace(0, len(array) - 1, LIMIT).round().astype(np.int64)]
    return len(array), zlib.compress(array.tobytes(), 6)


def decode(codec: str, data: bytes, stored: int) -> np.ndarray:
    """The float32 samples of a blob. Raises StoreError for an unknown codec or a damaged blob."""
    import numpy as np

    if codec != CODEC:
        raise StoreError(f"samples are stored as {codec!r}; this effbench reads {CODEC!r}: upgrade effbench")
    try:
        array = np.frombuffer(zlib.decompress(data), dtype="<f4")
    except (zlib.error, TypeError, ValueError) as error:
        raise StoreError(f"damaged samples: {error}") from error
    if len(array) != stored:
        raise StoreError(f"damaged samples: {len(array)} where {stored} were stored")
    return array.astype(np.float32)

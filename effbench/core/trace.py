"""A trace: what ran in a call of a trial, in order, and where the rest of the call's time went.

`measure/trace.py` takes it, the store keeps it compressed, and `analysis/explain.py` compares two
of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

#: Most kernels of a call that a trace holds; a longer call has no trace.
MOST_KERNELS = 10_000
#: Most bytes of a trace in the database.
BYTES_LIMIT = 2**20
#: Times of this many ms or more in a trace are damaged.
MOST_MS = 1e12
#: Digits of a time in ms: nanoseconds.
DIGITS = 6
#: Fields of a kernel that hold times, and all of them.
KERNEL_TIMES = ("ms", "added_ms", "gap_ms")
KERNEL_FIELDS = ("name", "launch", "operator", *KERNEL_TIMES)


class DamagedTraceError(ValueError):
    """Data that hold no trace."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, copy or fill on the GPU, or an operator on the CPU.

    `launch`: grid, block and shared memory, as the profiler writes them; empty for an operator.
    `operator`: which operator launched it; None if unknown, as in CUDA graphs. `ms`: its duration,
    on the CPU without the operators that it calls. `added_ms`: the part in which no earlier kernel
    ran. `gap_ms`: how long the device was idle before it; 0 for the first one.
    """

    name: str
    launch: str
    operator: str | None
    ms: float
    added_ms: float
    gap_ms: float


@dataclass(frozen=True)
class Trace:
    """One synchronised call, on average over the faster half of `calls` traced ones.

    `latency_ms`: by the host's clock, longer than in timing because tracing delays launches. It is
    the sum of `before_ms` (until the first kernel starts), the gaps and added times of the
    `kernels`, and `after_ms` (from the end of the last kernel until the host knows of it).
    `events`: recorded activities per call, which share that delay. `host`: ms per call of what the
    host did meanwhile, such as checking guards; they overlap with the other times.
    """

    device: str
    calls: int
    latency_ms: float
    before_ms: float
    after_ms: float
    events: int
    kernels: tuple[Kernel, ...]
    host: Mapping[str, float]

    @property
    def gap_ms(self) -> float:
        return sum(kernel.gap_ms for kernel in self.kernels)

    @property
    def busy_ms(self) -> float:
        return sum(kernel.added_ms for kernel in self.kernels)

    def to_json(self) -> dict[str, Any]:
        """Return columns of the kernels, and each different name, launch and operator once."""
        kinds = [(kernel.name, kernel.launch, kernel.operator) for kernel in self.kernels]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        data = vars(self) | {"kinds": list(numbers), "order": [numbers[kind] for kind in kinds]}
        for column in KERNEL_TIMES:
            data[column] = [getattr(kernel, column) for kernel in data["kernels"]]
        del data["kernels"]
        return data

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """Return the trace that `to_json` gave. Raises DamagedTraceError."""
        import msgspec  # here, because other interpreters import this module without it

        try:
            columns = [data[column] for column in KERNEL_TIMES]
            kernels = []
            for number, *times in zip(data["order"], *columns, strict=True):
                values = (*data["kinds"][number], *times)
                kernels.append(dict(zip(KERNEL_FIELDS, values, strict=True)))
            trace = msgspec.convert({**data, "kernels": kernels}, cls)
            ends = trace.latency_ms, trace.before_ms, trace.after_ms
            total_ms = sum(map(abs, chain(ends, trace.host.values(), *columns)))
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedTraceError(f"no trace: {error!r}") from error
        if len(kernels) > MOST_KERNELS or not total_ms < MOST_MS:  # NaN, or it overflows in sums
            raise DamagedTraceError("no trace: more kernels or longer times than any call has")
        return trace

    def packed(self) -> bytes:
        """Return the trace as compressed JSON. Raises ValueError for text that UTF-8 lacks."""
        import msgspec

        return zlib.compress(msgspec.json.encode(self.to_json()), level=6)

    @classmethod
    def unpacked(cls, data: bytes) -> Trace:
        """Return the trace that `packed` gave, of at most 32 MiB of text. Raises
        DamagedTraceError."""
        import msgspec

        try:
            text = zlib.decompressobj().decompress(data, 2**25)
            return cls.from_json(msgspec.json.decode(text))
        except (zlib.error, TypeError, ValueError, RecursionError) as error:
            raise DamagedTraceError(f"no trace: {error!r}") from error

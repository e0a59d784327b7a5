"""A trace: what ran in a call of a trial, in order, and where the rest of the call's time went.

`measure/trace.py` takes it, the store keeps it compressed, and `analysis/explain.py` compares two
of them.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from effbench.core.cell import encodable

#: Most kernels of a call that a trace holds; a longer call has no trace.
MOST_KERNELS = 10_000
#: Most bytes of a trace in the database.
BYTES_LIMIT = 2**20
#: A time of this many ms or more is damaged.
MOST_MS = 1e12
#: Digits of a time in ms: nanoseconds.
DIGITS = 6
#: Fields of a kernel that hold times.
KERNEL_TIMES = ("ms", "added_ms", "gap_ms")


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
        try:
            if len(data["order"]) > MOST_KERNELS:
                raise ValueError(f"more than {MOST_KERNELS:,} kernels")
            kinds = [checked_kind(*kind) for kind in data["kinds"]]
            columns = [map(finite, data[column]) for column in KERNEL_TIMES]
            kernels = []
            for number, *times in zip(data["order"], *columns, strict=True):
                kernels.append(Kernel(*kinds[number], *times))
            return cls(
                device=str(data["device"]),
                calls=int(data["calls"]),
                latency_ms=finite(data["latency_ms"]),
                before_ms=finite(data["before_ms"]),
                after_ms=finite(data["after_ms"]),
                events=int(data["events"]),
                kernels=tuple(kernels),
                host={encodable(str(name)): finite(ms) for name, ms in data["host"].items()},
            )
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise DamagedTraceError(f"no trace: {error!r}") from error

    def packed(self) -> bytes:
        """Return the trace as compressed JSON."""
        text = json.dumps(self.to_json(), separators=(",", ":"))
        return zlib.compress(text.encode(), level=6)

    @classmethod
    def unpacked(cls, data: bytes) -> Trace:
        """Return the trace that `packed` gave, of at most 32 MiB of text. Raises
        DamagedTraceError."""
        try:
            text = zlib.decompressobj().decompress(data, 2**25)
            return cls.from_json(json.loads(text))
        except (zlib.error, TypeError, ValueError, RecursionError) as error:
            raise DamagedTraceError(f"no trace: {error!r}") from error


def checked_kind(name: Any, launch: Any, operator: Any) -> tuple[str, str, str | None]:
    if operator is not None:
        operator = encodable(str(operator))
    return encodable(str(name)), encodable(str(launch)), operator


def finite(value: Any) -> float:
    """Return a time in ms. Raises ValueError for NaN, and for times that no call takes, whose sums
    may overflow."""
    number = float(value)
    if not abs(number) < MOST_MS:
        raise ValueError(f"{number} is no time")
    return number

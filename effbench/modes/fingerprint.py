"""What a captured graph took for granted of a module's weights: addresses, dtypes, shapes and strides.

Values may change in place: the graph reads them anew in each replay. A weight that is bound to other memory, or has
another dtype or shape, leaves the graph computing with what was there before.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

Print = tuple[int, torch.dtype, torch.Size, tuple[int, ...]]


class StaleGraphError(RuntimeError):
    """The weights are not those that the graph was captured over; the message names the first that differs."""


class Fingerprint:
    """Of a module's parameters and buffers at one moment."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.taken = dict(prints(module))

    def difference(self) -> str | None:
        """The first weight that is not what it was, and how; None where all are."""
        now = dict(prints(self.module))
        if now == self.taken:
            return None
        for name, before in self.taken.items():
            if name not in now:
                return f"{name} is gone"
            found = now[name]
            for what, old, new in zip(("address", "dtype", "shape", "strides"), before, found, strict=True):
                # the address last: another dtype or shape comes with another address
                if what != "address" and old != new:
                    return f"{name} has {what} {described(new)}, captured with {described(old)}"
            if before != found:
                return f"{name} lies at another address"
        added = next(name for name in now if name not in self.taken)
        return f"{added} is new"

    def refuse_stale(self) -> None:
        """Raises StaleGraphError where the graph would compute with other weights than the module's."""
        if difference := self.difference():
            raise StaleGraphError(f"{difference}: this graph must be captured again")


def prints(module: torch.nn.Module) -> Iterator[tuple[str, Print]]:
    for named in (module.named_parameters, module.named_buffers):
        for name, tensor in named(remove_duplicate=False):
            yield name, (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())


def described(value: object) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)

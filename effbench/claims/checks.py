"""Mark functions as behaviour checks. A check is `def name(device: torch.device, **settings) ->
dict[str, Any]`: it tests what torch does, in a process of its own, and returns facts as JSON
(docs/reference/experiments.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from effbench.worker.check import COMPILER, CPP_COMPILER, CUDA

__all__ = ["COMPILER", "CPP_COMPILER", "CUDA", "Facts", "check"]

Facts = dict[str, Any]
Check = Callable[..., Facts]


def check(needs: Sequence[str] = ()) -> Callable[[Check], Check]:
    """Mark a function as a behaviour check, which is unsupported if the machine lacks one of its
    `needs`."""

    def mark(function: Check) -> Check:
        function.needs = tuple(needs)  # type: ignore[attr-defined]
        return function

    return mark

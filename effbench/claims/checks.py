"""Helpers of behaviour checks. A check is `def name(device: torch.device, **settings) -> dict[str,
Any]`: it tests what torch does, in a process of its own, and returns facts as JSON
(docs/reference/experiments.md)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from effbench.core.errors import UnsupportedError
from effbench.core.printable import first_line, text_of
from effbench.modes.base import needs_compiler
from effbench.worker.check import COMPILER, CPP_COMPILER

Facts = dict[str, Any]
CUDA = "CUDA"


def check(needs: Sequence[str] = ()) -> Callable[[Callable[..., Facts]], Callable[..., Facts]]:
    """Mark a function as a behaviour check, which raises UnsupportedError if the machine lacks one
    of its `needs`."""

    def mark(function: Callable[..., Facts]) -> Callable[..., Facts]:
        @functools.wraps(function)
        def checked(device: torch.device, **settings: Any) -> Facts:
            if CUDA in needs and device.type != "cuda":
                raise UnsupportedError(
                    f"{function.__name__} needs CUDA, but this runs on {device.type}"
                )
            compiling = {COMPILER: device, CPP_COMPILER: torch.device("cpu")}
            for need in compiling.keys() & set(needs):
                reason = needs_compiler(compiling[need])
                if reason:
                    raise UnsupportedError(reason)
            return function(device, **settings)

        checked.needs = tuple(needs)  # type: ignore[attr-defined]
        return checked

    return mark


@dataclass
class Attempt:
    """The outcome of a call: a value or an exception."""

    value: Any = None
    raised: Exception | None = None

    @property
    def succeeded(self) -> bool:
        return self.raised is None

    def facts(self) -> Facts:
        return {"succeeded": self.succeeded, **error_facts(self.raised)}


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Attempt:
    """Call the function; return its value or its exception."""
    try:
        return Attempt(value=function(*args, **kwargs))
    except Exception as error:  # any exception is an observation
        return Attempt(raised=error)


def error_facts(error: Exception | None) -> Facts:
    """Return the type and first line of an error, both None without an error."""
    if error is None:
        return {"error_type": None, "error": None}
    return {"error_type": type(error).__name__, "error": first_line(text_of(error))}

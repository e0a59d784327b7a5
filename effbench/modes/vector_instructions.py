"""What Inductor finds out once about a machine: which vector instructions the C++ that it writes may use.

It compiles and loads a sample of each kind: seconds that depend on the machine and not on the model. Learned before
anything is timed, they are in no cell's compile seconds; learned in the fork server, they are spent once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from effbench.modes.base import Mode, needs_compiler

FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def learn(folder: str | None = None) -> None:
    """Keep in this process what the machine can; does nothing the second time, or without a C++ compiler.

    `folder`: where the compiled samples are kept for other processes (default: Inductor's own, one a user).
    """
    if needs_compiler(torch.device("cpu")) is not None:
        return
    # private, and the compiler may be broken: what is not learned here the cell's own compilation asks again, and what
    # fails there is the cell's status
    with suppress(Exception):
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        with variable(FOLDER, folder):
            valid_vec_isa_list()


def writes_cpp(mode: Mode | type[Mode], device: torch.device) -> bool:
    """Whether Inductor writes C++ for this mode there, or wraps its kernels in it."""
    uses_dynamo = getattr(mode, "uses_dynamo", mode.compiles)
    return bool(uses_dynamo and device.type == "cpu") or getattr(mode, "wraps_in_cpp", False)


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """An environment variable with this value, or without any; afterwards as it was."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

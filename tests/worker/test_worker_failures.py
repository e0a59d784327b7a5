"""From exceptions to a status and one line."""

from __future__ import annotations

import pytest
import torch

from effbench.errors import UnsupportedError
from effbench.worker import failures


def raised(error, cause=None):
    try:
        try:
            raise cause or error
        except BaseException as inner:
            if cause is None:
                raise
            raise error from inner
    except BaseException as caught:
        return caught


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("bad\nmore"), "error", "in check: ValueError: bad"),
        (ValueError(), "error", "in check: ValueError"),
        (ValueError("\n\n  at last  \n"), "error", "in check: ValueError: at last"),
        (MuteError(), "error", "in check: MuteError"),
        (KeyboardInterrupt(), "error", "in check: KeyboardInterrupt"),
        (MemoryError(), "oom", "in check: MemoryError"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "oom", "in check: CUDA out of memory. Tried"),
        (RuntimeError("CUDA error: out of memory"), "oom", "in check: CUDA error: out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "oom", "in check: DefaultCPUAllocator"),
        (ValueError("my lamp is out of memory"), "error", "in check: ValueError: my lamp"),
        (RuntimeError("CUDA error: device-side assert triggered"), "error", "in check: RuntimeError: CUDA error"),
        (RuntimeError("Cannot find a working triton installation."), "unsupported", "pip install triton"),
        (RuntimeError("Failed to find C compiler."), "unsupported", "install gcc"),
        (UnsupportedError("needs CUDA"), "unsupported", "needs CUDA"),
    ],
)
def test_status_and_reason(error, status, reason):
    found, said = failures.classify(raised(error), "check")
    assert (found, said[: len(reason)] if status != "unsupported" else reason in said) == (
        status,
        reason if status != "unsupported" else True,
    )
    assert "\n" not in said


def test_inductors_missing_compiler():
    from torch._inductor.exc import InvalidCxxCompiler

    error = raised(RuntimeError("backend='inductor' raised"), cause=InvalidCxxCompiler())
    assert failures.classify(error, "prepare") == (
        "unsupported", "Inductor found no working C++ compiler: install g++ (Debian: apt-get install g++)",
    )  # fmt: skip


def test_the_cause_of_a_cause_counts():
    assert failures.classify(raised(RuntimeError("wrapped"), cause=MemoryError()), None)[0] == "oom"


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert failures.classify(first, None) == ("error", "ValueError: a")


def test_long_lines_are_cut():
    reason = failures.classify(ValueError("x" * 5000), None)[1]
    assert len(reason) < 330
    assert reason.endswith("…")


def test_tracebacks_keep_their_end():
    tail = failures.traceback_tail(raised(ValueError("y" * 10_000 + " the end")))
    assert len(tail) <= failures.TRACEBACK_CHARACTERS
    assert tail.rstrip().endswith("the end")

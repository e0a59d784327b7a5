"""From exceptions to a status and one line."""

import json
import queue
import re
from pathlib import Path

import pytest
import torch
from torch.distributions import Distribution

from effbench.core.errors import UnsupportedError
from effbench.core.python_files import module_of
from effbench.worker import failures


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


class MuteError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ValueError("bad\nmore"), "error", "in check: ValueError: bad"),
        (MuteError(), "error", "in check: MuteError"),
        (MemoryError(), "oom", "in check: MemoryError"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried"),
            "oom",
            "in check: CUDA out of memory. Tried",
        ),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
            "oom",
            "in check: CUDA error",
        ),
        (ValueError("my lamp is out of memory"), "error", "in check: ValueError: my lamp"),
        (
            RuntimeError("Cannot find a working triton installation."),
            "unsupported",
            "pip install triton",
        ),
        (UnsupportedError("needs CUDA"), "unsupported", "needs CUDA"),
    ],
)
def test_status_and_reason(error, status, reason):
    actual, text = failures.classify(raised(error), "check")
    assert actual == status
    assert reason in text
    assert "more" not in text
    assert "File" not in text


@pytest.mark.parametrize("line", ["x.cpp:3:1: error: expected ';'", "ld: cannot find -lgomp"])
def test_the_first_error_of_a_compiler_is_in_the_reason(line):
    from torch._inductor.exc import CppCompileError

    output = f"x.cpp: In function 'kernel':\nx:1: warning: unused\n{line}\nx:9: error: another\n"
    error = CppCompileError(["g++", "x.cpp"], output)
    _, reason = failures.classify(raised(RuntimeError(f"CppCompileError: {error}")), "prepare")
    assert f"C++ compile error: {line}" in reason
    assert "another" not in reason
    assert "unused" not in reason


def test_the_cause_of_an_error_counts():
    from torch._inductor.exc import InvalidCxxCompiler

    error = raised(RuntimeError("backend='inductor' raised"), cause=InvalidCxxCompiler())
    status, reason = failures.classify(error, "prepare")
    assert status == "unsupported"
    assert "install g++" in reason
    assert failures.classify(raised(RuntimeError("wrapped"), cause=MemoryError()), None)[0] == "oom"
    hidden = raised(ValueError("width"))
    hidden.__context__, hidden.__suppress_context__ = MemoryError(), True
    assert failures.classify(hidden, None)[0] == "error", "raised `from None`"


def test_a_chain_of_causes_that_bites_its_tail_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert failures.classify(first, None) == ("error", "ValueError: a")


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """Runs code as a user's module `nets/mine.py` below the working directory; returns what it
    raises."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nets" / "mine.py"
    path.parent.mkdir()

    def call(code):
        path.write_text(code)
        with pytest.raises(Exception) as caught:
            module_of(path).forward()
        return caught.value

    return call


@pytest.mark.parametrize("line", ["torch.nn.Linear(2, 2)(torch.zeros(3))", "json.loads('x')"])
def test_an_error_says_where_in_the_users_code_it_was_raised(users_module, line):
    error = users_module(f"import json, torch\n\ndef forward():\n    {line}\n")
    _, reason = failures.classify(error, "check")
    assert reason.endswith(" (nets/mine.py:4 in forward)")
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = error
    assert failures.location(wrapped) == "nets/mine.py:4 in forward"


def test_code_that_inductor_generates_is_not_the_users(users_module, monkeypatch):
    error = users_module("def forward():\n    raise ValueError('too few')\n")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(Path.cwd()))
    assert "mine.py" not in failures.location(error)


def raised_in_library(call):
    """Return what the call raises, without the frames of this file."""
    with pytest.raises(Exception) as caught:
        call()
    frames = caught.value.__traceback__
    while frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return caught.value.with_traceback(frames)


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: json.loads("x"), ""),
        (lambda: torch.nn.Linear(2, 2)(torch.zeros(3)), ""),
        (queue.Queue().get_nowait, r".*queue\.py:\d+ in get"),
        (Distribution(validate_args=False).sample, r"torch/distributions/.*\.py:\d+ in rsample"),
    ],
)
def test_only_an_error_without_a_message_names_a_frame_of_a_library(call, place):
    assert re.fullmatch(place, failures.location(raised_in_library(call)))


def test_an_error_that_was_never_raised_has_no_location():
    assert failures.location(AssertionError()) == ""


def test_a_module_that_ends_its_process_is_a_crash_with_its_message():
    error = raised(SystemExit("license not found"))
    status, reason = failures.classify(error, "build")
    assert status == "crashed"
    assert reason.startswith("in build: SystemExit: license not found (")

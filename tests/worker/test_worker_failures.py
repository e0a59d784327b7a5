"""From exceptions to a status and one line."""

import importlib.util

import pytest
import torch

from effbench.errors import UnsupportedError
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
        (ValueError("\n\n  at last  \n"), "error", "in check: ValueError: at last"),
        (
            ValueError("raised:\nKeyError: 'a'\nmore"),
            "error",
            "in check: ValueError: raised: KeyError: 'a'",
        ),
        (ValueError('wrong:\n  File "x.py", line 3\n'), "error", "in check: ValueError: wrong"),
        (ValueError("wrong:"), "error", "in check: ValueError: wrong"),
        (MuteError(), "error", "in check: MuteError"),
        (KeyboardInterrupt(), "error", "in check: KeyboardInterrupt"),
        (MemoryError(), "oom", "in check: MemoryError"),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried"),
            "oom",
            "in check: CUDA out of memory. Tried",
        ),
        (RuntimeError("CUDA error: out of memory"), "oom", "in check: CUDA error: out of memory"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"),
            "oom",
            "in check: CUDA error: CUBLAS",
        ),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "oom",
            "in check: DefaultCPUAllocator",
        ),
        (ValueError("my lamp is out of memory"), "error", "in check: ValueError: my lamp"),
        (
            RuntimeError("CUDA error: device-side assert triggered"),
            "error",
            "in check: RuntimeError: CUDA error",
        ),
        (
            RuntimeError("Cannot find a working triton installation."),
            "unsupported",
            "pip install triton",
        ),
        (RuntimeError("Failed to find C compiler."), "unsupported", "install gcc"),
        (UnsupportedError("needs CUDA"), "unsupported", "needs CUDA"),
    ],
)
def test_status_and_reason(error, status, reason):
    found, said = failures.classify(raised(error), "check")
    assert found == status
    assert reason in said if status == "unsupported" else said.startswith(reason)
    assert "\n" not in said and "more" not in said and "File" not in said


def test_the_first_error_of_a_compiler_is_in_the_reason():
    from torch._inductor.exc import CppCompileError

    for line in (
        "g++: fatal error: no input files",
        "x.cpp:3:1: error: expected ';'",
        "ld: cannot find -lgomp",
    ):
        output = (
            f"x.cpp: In function 'kernel':\nx.cpp:1: warning: unused\n{line}\nx.cpp:9:1: error:"
            " another\n"
        )
        wrapped = raised(
            RuntimeError(f"CppCompileError: {CppCompileError(['g++', 'x.cpp'], output)}")
        )
        _, reason = failures.classify(wrapped, "prepare")
        assert (
            f"C++ compile error: {line}" in reason
            and "another" not in reason
            and "unused" not in reason
        )
    for text in ("C++ compile error\n\nOutput:\nsilence", "wrong\n\nOutput:\nx: error: mine"):
        _, reason = failures.classify(raised(RuntimeError(text)), "prepare")
        assert "silence" not in reason and "mine" not in reason


def test_the_cause_of_an_error_counts():
    from torch._inductor.exc import InvalidCxxCompiler

    error = raised(RuntimeError("backend='inductor' raised"), cause=InvalidCxxCompiler())
    status, reason = failures.classify(error, "prepare")
    assert status == "unsupported" and "install g++" in reason
    assert failures.classify(raised(RuntimeError("wrapped"), cause=MemoryError()), None)[0] == "oom"
    hidden = raised(ValueError("width"), cause=None)
    hidden.__context__, hidden.__suppress_context__ = MemoryError(), True
    assert failures.classify(hidden, None)[0] == "error", "raised `from None`"
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    assert failures.classify(first, None) == (
        "error",
        "ValueError: a",
    ), "a chain that bites its tail ends"


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    """Runs code as a user's module `nets/mine.py` below the working directory; returns what it
    raises."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "nets" / "mine.py"
    path.parent.mkdir()

    def call(code):
        path.write_text(code)
        spec = importlib.util.spec_from_file_location("mine", path)
        module = importlib.util.module_from_spec(spec)
        with pytest.raises(Exception) as caught:
            spec.loader.exec_module(module)
            module.forward()
        return caught.value

    return call


def test_an_error_says_where_in_the_users_code_it_was_raised(users_module, monkeypatch):
    error = users_module("import torch\n\ndef forward():\n    torch.zeros(2) @ torch.zeros(3)\n")
    assert failures.classify(error, "check")[1].endswith(" (nets/mine.py:4 in forward)")
    error = users_module("import json\n\ndef forward():\n    json.loads('x')\n")
    assert failures.classify(error, None)[1].endswith(" (nets/mine.py:4 in forward)"), (
        "not the line of json"
    )
    wrapped = RuntimeError("backend failed")
    wrapped.__cause__ = error
    assert failures.location(wrapped) == "nets/mine.py:4 in forward"
    assert failures.location(ValueError("never raised")) == ""
    assert failures.location(users_module("def forward(:\n")) == "", (
        "the text of a SyntaxError names the file"
    )
    compilers = (
        'a branch\nfrom user code:\n  File "{}/torch/x.py", line 3, in g\n  File "nets/mine.py",'
        " line 7{}\n"
    )
    # Inductor's lists end lines with a comma
    for name, end in (("", ""), (" in forward", ""), (" in forward", ",")):
        text = compilers.format(failures.LIBRARIES[1].parent, name and f",{name}{end}")
        assert failures.location(RuntimeError(text)) == f"nets/mine.py:7{name}", (
            "not run, but named"
        )
    error = users_module("def forward():\n    raise ValueError('x')\n")
    monkeypatch.setattr(failures, "is_users", lambda path: False)
    assert failures.location(error) == "nets/mine.py:2 in forward", (
        "the innermost frame outside effbench"
    )


def test_long_texts_are_cut():
    reason = failures.classify(ValueError("x" * 5000), None)[1]
    assert len(reason) < 330 and reason.endswith("…")
    tail = failures.traceback_tail(raised(ValueError("y" * 10_000 + " the end")))
    assert len(tail) <= failures.TRACEBACK_CHARACTERS and tail.rstrip().endswith("the end")

"""Status and one-line reason for an exception inside a trial."""

from __future__ import annotations

import re
import sysconfig
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir

from effbench.core.cell import Status, Trial
from effbench.core.errors import UnsupportedError
from effbench.core.printable import describe, first_line, text_of
from effbench.workloads.endings import chain, is_out_of_memory

NO_TOOLKIT = "no CUDA headers or libraries: install the CUDA toolkit or set CUDA_HOME"
#: Part of an error that indicates a missing requirement -> the problem and its fix.
MISSING = {
    "InvalidCxxCompiler": (
        "Inductor found no working C++ compiler: install g++ (Debian: apt-get install g++)"
    ),
    "Failed to find C compiler": (
        "Triton found no C compiler: install gcc (Debian: apt-get install gcc)"
    ),
    "Cannot find a working triton installation": "Inductor found no Triton: pip install triton",
    "TritonMissing": "Inductor found no Triton: pip install triton",
    "GPUTooOldForTriton": "Triton does not support this GPU: it is too old",
    "CUDA_HOME environment variable is not set": NO_TOOLKIT,
    "cannot find -lcuda": NO_TOOLKIT,
}
#: How cuBLAS, cuDNN and their like report failures, also a lack of memory (as `INTERNAL_ERROR`, for
#: example).
LIBRARY_STATUS = re.compile(r"\bCU[A-Z]+_STATUS_")
#: In the output of a C++ compiler or linker: the line that names the problem.
COMPILER_ERROR = re.compile(r"^.*(\berror: |undefined reference|cannot find ).*$", re.MULTILINE)
TRACEBACK_CHARACTERS = 6000
#: Folders without user code, and the names of folders of packages.
LIBRARIES = (Path(__file__).parents[1], Path(sysconfig.get_path("stdlib")))
PACKAGES = {"site-packages", "dist-packages"}


@dataclass
class Failure:
    """How a process failed, as its trial records it. `traceback`: empty if the process died."""

    status: str
    reason: str
    traceback: str = ""
    has_library_status: bool = False

    def record(self, trial: Trial) -> None:
        """Set the trial's status and reason."""
        trial.status, trial.reason = Status(self.status), self.reason
        trial.has_library_status = self.has_library_status
        if self.traceback:
            trial.extra["traceback"] = self.traceback


def failure_of(error: BaseException, phase: str | None) -> Failure:
    """Return how an exception in this phase fails a trial."""
    status, reason = classify(error, phase)
    is_library = status is Status.ERROR and LIBRARY_STATUS.search(reason) is not None
    return Failure(status, reason, traceback_tail(error), is_library)


def classify(error: BaseException, phase: str | None) -> tuple[Status, str]:
    """Return the status and the reason: phase, type, first line and, for an error, the location
    that raised it."""
    where = f"in {phase}: " if phase else ""
    for link in chain(error):
        text = text_of(link)
        if isinstance(link, UnsupportedError):
            return Status.UNSUPPORTED, first_line(text)
        if is_out_of_memory(link):
            return Status.OOM, f"{where}{first_line(text) or type(link).__name__}"
        for known, advice in MISSING.items():
            if known == type(link).__name__ or known in text:
                return Status.UNSUPPORTED, advice
    reason = f"{where}{describe(error)}{compiler_message(error)}"
    place = location(error)
    if place:
        reason = f"{reason} ({place})"
    if isinstance(error, SystemExit):
        return Status.CRASHED, reason
    return Status.ERROR, reason


def compiler_message(error: BaseException) -> str:
    """Return the first error that a C++ compiler printed, after a colon; empty if none did.
    Inductor's own first line only says that there was one."""
    for link in chain(error):
        _, separator, output = text_of(link).partition("C++ compile error")
        match = COMPILER_ERROR.search(output)
        if separator and match:
            return f": {first_line(match[0])}"
    return ""


def location(error: BaseException) -> str:
    """Return the innermost frame of user code as `nets/mine.py:34 in forward`. Paths inside the
    working directory are relative. Without user code the result is empty, but for an error without
    a message, of which the innermost frame of all says more than its type."""
    for link in chain(error):
        for frame in reversed(traceback.extract_tb(link.__traceback__)):
            path = Path(frame.filename)
            if is_users(path):
                with suppress(OSError, ValueError):  # outside, or it has been removed
                    path = path.relative_to(Path.cwd())
                return f"{path}:{frame.lineno} in {frame.name}"
    frames = traceback.extract_tb(error.__traceback__)
    if text_of(error) or not frames:
        return ""
    path = Path(frames[-1].filename)
    for package in PACKAGES & set(path.parts):
        path = Path(*path.parts[path.parts.index(package) + 1 :])
    return f"{path}:{frames[-1].lineno} in {frames[-1].name}"


def is_users(path: Path) -> bool:
    """Return whether a file of code is the user's, not generated by Inductor. Frozen modules have
    no absolute path."""
    if not path.is_absolute() or PACKAGES & set(path.parts) or path.is_relative_to(cache_dir()):
        return False
    return not any(path.is_relative_to(folder) for folder in LIBRARIES)


def traceback_tail(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]

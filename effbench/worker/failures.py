"""Status and one-line reason for an exception inside a trial."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from effbench.core.cell import Status
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
COMPILER_ERROR = re.compile(r"\berror: |undefined reference|cannot find ")
TRACEBACK_CHARACTERS = 6000
OWN = Path(__file__).parents[1]
#: Folders without user code; the variables name caches of generated code.
LIBRARIES = (
    OWN,
    Path(torch.__file__).parent,
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
)
GENERATED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

#: A frame in the text of an error: compilers name the user's code there, which they do not run.
FRAME = re.compile(r'File "([^"\n<]+)", line (\d+)(?:, in ([^\s,]+))?')


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
    return Status.ERROR, reason


def compiler_message(error: BaseException) -> str:
    """Return the first error that a C++ compiler printed, after a colon; empty if none did.
    Inductor's own first line only says that there was one."""
    for link in chain(error):
        before, separator, output = text_of(link).partition("\nOutput:\n")
        if not separator or "compile error" not in before:
            continue
        for line in output.splitlines():
            if COMPILER_ERROR.search(line):
                return f": {first_line(line)}"
    return ""


@dataclass(frozen=True)
class Frame:
    """A line of code in a traceback, or in the text of an error. `function`: empty if unknown."""

    path: Path
    line: str
    function: str

    @property
    def is_own(self) -> bool:
        return self.path.is_relative_to(OWN)

    @property
    def is_users(self) -> bool:
        """Whether it belongs neither to a library nor to generated code."""
        if {"site-packages", "dist-packages"} & set(self.path.parts):
            return False
        generated = [Path(os.environ[name]) for name in GENERATED if os.environ.get(name)]
        return not any(self.path.is_relative_to(path) for path in (*LIBRARIES, *generated))

    def __str__(self) -> str:
        path = self.path
        if path.is_relative_to(Path.cwd()):
            path = path.relative_to(Path.cwd())
        if not self.function:
            return f"{path}:{self.line}"
        return f"{path}:{self.line} in {self.function}"


def location(error: BaseException) -> str:
    """Return the innermost frame of user code as `nets/mine.py:34 in forward`. Without user code,
    return the innermost frame outside effbench, or an empty text. Paths inside the working
    directory are relative."""
    # its message names the file, and its frames belong to the import system
    if isinstance(error, SyntaxError):
        return ""
    run: list[Frame] = []
    named: list[Frame] = []
    with contextlib.suppress(OSError):  # the module may have removed the working directory
        for link in chain(error):
            run += frames_in("".join(traceback.format_tb(link.__traceback__)))
            named += frames_in(text_of(link))
        outside = [frame for frame in run if not frame.is_own]
        for frame in (*outside, *named):
            if frame.is_users:
                return str(frame)
        if outside:
            return str(outside[0])
    return ""


def frames_in(text: str) -> Iterator[Frame]:
    """Yield the frames in a text, innermost first."""
    for path, line, function in reversed(FRAME.findall(text)):
        yield Frame(Path(path).absolute(), line, function)


def traceback_tail(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]

"""Status and one-line reason for an exception inside a trial."""

from __future__ import annotations

import contextlib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from effbench.cell import Status
from effbench.errors import UnsupportedError
from effbench.printable import describe, first_line, text_of

OOM_TEXTS = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "cannot allocate memory",
    "alloc_failed",
)
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
}
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


class Ended(Exception):
    """End a trial early with this status and reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception and its causes."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_out_of_memory(error: BaseException) -> bool:
    says_so = isinstance(error, RuntimeError) and any(
        known in text_of(error).lower() for known in OOM_TEXTS
    )
    return says_so or isinstance(error, (MemoryError, torch.OutOfMemoryError))


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
    place = location(error)
    reason = f"{describe(error)}{compiler_message(error)}"
    return Status.ERROR, f"{where}{reason}" + (f" ({place})" if place else "")


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


def without_float64(doubt: str, error: Exception) -> str:
    """Return the reason of a result that only float64 could have cleared of a `doubt`, but its
    computation failed.

    Raises Ended if memory ran out: other trials may have used it, so this says nothing about the
    result.
    """
    reason = f"{doubt}; no float64 reference ({describe(error)})"
    if any(map(is_out_of_memory, chain(error))):
        raise Ended(Status.OOM, reason) from error
    return reason


def location(error: BaseException) -> str:
    """Return the innermost frame of user code as `nets/mine.py:34 in forward`. Without user code,
    return the innermost frame outside effbench, or an empty text. Paths inside the working
    directory are relative."""
    # its message names the file, and its frames belong to the import system
    if isinstance(error, SyntaxError):
        return ""
    links = list(chain(error))
    frames = [
        frame for link in links for frame in reversed(traceback.extract_tb(link.__traceback__))
    ]
    with contextlib.suppress(OSError):  # the module may have removed the working directory
        located = [
            (Path(it.filename).absolute(), it.lineno, it.name)
            for it in frames
            if not it.filename.startswith("<")
        ]
        outside = [frame for frame in located if not frame[0].is_relative_to(OWN)]
        texts = [found for link in links for found in reversed(FRAME.findall(text_of(link)))]
        named = [(Path(file).absolute(), line, name) for file, line, name in texts]
        for path, line, name in [
            frame for frame in (*outside, *named) if is_users(frame[0])
        ] or outside:
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            return f"{shown}:{line}" + (f" in {name}" if name else "")
    return ""


def is_users(path: Path) -> bool:
    folders = [*LIBRARIES, *(Path(os.environ[name]) for name in GENERATED if os.environ.get(name))]
    return not {"site-packages", "dist-packages"} & set(path.parts) and not any(
        map(path.is_relative_to, folders)
    )


def traceback_tail(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-TRACEBACK_CHARACTERS:]

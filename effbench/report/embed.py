"""Small preparations of foreign strings for a page."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePath


def without_password(text: str) -> str:
    """`text` with the password of any URL in it replaced by `***`."""
    return re.sub(r"(://[^\s/:@]*):[^\s/]*@", r"\1:***@", text)


def command_line(arguments: list[str]) -> str:
    """Arguments as one line for a shell; the program's path becomes its bare name."""
    words = [str(word) for word in arguments]
    if words and (PurePath(words[0]).name == "effbench" or words[0].endswith("effbench/__main__.py")):
        words = words[1:]
    return without_password(shlex.join(["effbench", *words]))

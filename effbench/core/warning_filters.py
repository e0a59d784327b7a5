"""Keep a user's warning filters from raising exceptions in effbench's code and in the libraries
that it uses."""

from __future__ import annotations

import re
import warnings
from typing import Any, cast

#: The environment variable with Python's warning filters, and the one of them that raises
#: exceptions.
VARIABLE = "PYTHONWARNINGS"
RAISING = "error"
#: Prints the first warning of each line of code.
PRINTING = "default"
#: The raising action of a filter in PYTHONWARNINGS; Python also accepts its first letters.
ACTION = re.compile(r"(?<![^,])\s*(e|er|err|erro|error)\s*(?=[:,]|$)")


def print_instead_of_raising() -> None:
    """Change this process's warning filters: those that raise an exception print the warning
    instead.

    With `PYTHONWARNINGS=error` or `python -W error`, any library's warning about a future release
    would end a sweep.
    """
    filters = []
    for action, *rest in warnings.filters:
        filters.append((PRINTING if action == RAISING else action, *rest))
    warnings.resetwarnings()  # also forgets what was decided by the old filters
    cast(list[Any], warnings.filters).extend(filters)


def without_errors(filters: str) -> str:
    """Return the value of PYTHONWARNINGS with filters that print instead of raise:
    `default::UserWarning` for `error::UserWarning`."""
    return ACTION.sub(PRINTING, filters)

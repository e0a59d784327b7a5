"""The interface of tasks: modules next to this one with a function `run(payload, say_phase)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Plain JSON: a task's payload and result.
Json = dict[str, Any]
#: Tells the sweep which phase a task enters.
SayPhase = Callable[[str], None]

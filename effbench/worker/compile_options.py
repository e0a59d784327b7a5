"""The task `compile_options`: list arguments, modes and options of the installed torch.compile."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch


def run(payload: dict[str, Any], say_phase: Callable[[str], None]) -> dict[str, Any]:
    """Return {"torch_version", "arguments", "modes", "options"}: torch.compile's arguments with their defaults, its
    modes with the options that they set, and all of Inductor's options with their defaults. Values are reprs."""
    from torch._inductor import config

    arguments = [p for p in inspect.signature(torch.compile).parameters.values() if p.kind is p.KEYWORD_ONLY]
    modes = torch._inductor.list_mode_options()
    return {
        "torch_version": torch.__version__,
        "arguments": {p.name: repr(p.default) for p in arguments},
        "modes": {mode: {name: repr(value) for name, value in options.items()} for mode, options in modes.items()},
        "options": {name: repr(attrgetter(name)(config)) for name in sorted(torch._inductor.list_options())},
    }

"""What a check reports, and what it reports on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from effbench.measure.telemetry import Gpu, Nvml


@dataclass(frozen=True)
class Finding:
    """`level` (good, note, warning: results suffer, or problem: something cannot be measured at all), `what` the check
    found, its `effect` on results, the `fix`, and the `area`."""

    level: str
    what: str
    effect: str = ""
    fix: str = ""
    area: str = ""

    @property
    def needs_attention(self) -> bool:
        return self.level in ("warning", "problem")

    def to_json(self) -> dict[str, str]:
        return {
            "level": self.level,
            "what": self.what,
            "effect": self.effect,
            "mend": self.fix,  # the name that readers of the JSON know
            "area": self.area,
        }


@dataclass(frozen=True)
class Machine:
    """What checks look at. `answer`: the probe's, None if no worker runs. `root`: where the kernel's files are."""

    db: str
    answer: dict[str, Any] | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")

    @cached_property
    def nvml(self) -> Nvml:
        return Nvml()

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The GPUs that torch uses and NVML knows, named by torch's index."""
        gpus = []
        for gpu in self.answer["gpus"] if self.answer else ():
            handle = self.nvml.handle(gpu["uuid"])
            if handle is not None:
                gpus.append(Gpu(self.nvml, handle, f"GPU {gpu['index']}"))
        return gpus


def good(what: str) -> Finding:
    return Finding("good", what)


def note(what: str, effect: str = "", fix: str = "") -> Finding:
    return Finding("note", what, effect, fix)


def warning(what: str, effect: str, fix: str = "") -> Finding:
    return Finding("warning", what, effect, fix)


def problem(what: str, effect: str, fix: str = "") -> Finding:
    return Finding("problem", what, effect, fix)


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 process`, `2 processes`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"

"""How a cell uses several devices: the axis `parallel`, such as `tp2`.

Standard library only, because other interpreters import it without effbench's packages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from effbench.core.errors import ConfigError

#: The value of the setting for cells that use one device.
NONE = "none"
_TEXT = re.compile(r"([a-z]+)([1-9][0-9]{0,3})")


class ParallelKind(StrEnum):
    """What the ranks share: the layers' weights (`tp`, tensor parallel), the batches (`ddp`, data
    parallel), or both (`fsdp`, fully sharded data parallel)."""

    TENSOR = "tp"
    DATA = "ddp"
    SHARDED = "fsdp"


@dataclass(frozen=True)
class Parallel:
    """A kind with the number of ranks. Each rank is a process with a device of its own."""

    kind: ParallelKind
    size: int

    @classmethod
    def parse(cls, text: str) -> Parallel | None:
        """Return what a setting such as `tp2` means; None for `none`. Raises ConfigError."""
        if text == NONE:
            return None
        match = _TEXT.fullmatch(text)
        if match is not None and match[1] in set(ParallelKind) and int(match[2]) >= 2:
            return cls(ParallelKind(match[1]), int(match[2]))
        raise ConfigError(
            f"parallel: expected none, or tp, ddp or fsdp with at least two ranks, got {text!r}."
            " Example: parallel=none,tp2"
        )

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Parallel | None:
        """Return how a stored cell with these parameters uses several devices; None for one device,
        and for a text that this version does not know."""
        try:
            return cls.parse(str(params.get("parallel", NONE)))
        except ConfigError:
            return None

    @property
    def has_own_batches(self) -> bool:
        """Whether each rank has a batch of its own, of the cell's batch size."""
        return self.kind is not ParallelKind.TENSOR

    @property
    def batches(self) -> int:
        """The number of batches of a call: of data parallel training, one for each rank."""
        return self.size if self.has_own_batches else 1

    @property
    def ideal_ratio(self) -> float:
        """The best possible time ÷ the time on one device."""
        return self.batches / self.size

    @property
    def name(self) -> str:
        """How a sentence calls it: `tensor parallel over 2 ranks`."""
        names = {
            ParallelKind.TENSOR: "tensor parallel",
            ParallelKind.DATA: "data parallel",
            ParallelKind.SHARDED: "fully sharded data parallel",
        }
        return f"{names[self.kind]} over {self.size} ranks"

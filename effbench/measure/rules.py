"""The settings of the protocol that a trial follows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

FEWEST_PASSES = 5  # minimum passes to time the latency of a stream, if the budget allows them
# in place of a protocol's tolerance of None
HOST_TOLERANCE = 0.1


@dataclass(frozen=True)
class Rules:
    """The settings of the protocol that a trial follows; `settings.Protocol` documents them.

    `host_tolerance`: None if disturbed samples count, too; they are still told apart.
    """

    rounds: int = 1
    budget_s: float = 5.0
    min_time_s: float = 0.5
    min_samples: int = 30
    target_interval: float = 0.005
    max_samples: int = 100_000
    warmup_calls: int = 10
    warmup_s: float = 0.2
    max_warmup_s: float = 2.0
    min_block_ms: float = 5.0
    load_s: float = 0.3
    input_sets: int = 3
    check_steps: int = 5
    host_tolerance: float | None = 0.1
    patience: float = 1.0
    profile: bool = False

    @classmethod
    def of(cls, protocol: Mapping[str, Any]) -> Rules:
        """Return the rules of these settings, which may contain others. If all samples count, no
        timer waits for undisturbed ones."""
        names = {rule.name for rule in fields(cls)}
        rules = cls(**{name: protocol[name] for name in names & protocol.keys()})
        if rules.discards:
            return rules
        return replace(rules, patience=1.0)

    def of_passes(self, calls: int) -> Rules:
        """Return these rules with limits for passes of `calls` calls instead of single calls."""
        if calls == 1:
            return self
        fewest = max(FEWEST_PASSES, math.ceil(self.min_samples / calls))
        most = max(1, self.max_samples // calls)
        return replace(self, min_samples=fewest, max_samples=most)

    @property
    def discards(self) -> bool:
        """Whether disturbed samples do not count if there are enough others."""
        return self.host_tolerance is not None

    @property
    def tolerance(self) -> float:
        """How many times longer than usual fixed work may take on an undisturbed host."""
        return 1 + (self.host_tolerance or HOST_TOLERANCE)

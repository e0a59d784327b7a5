"""What passes for noise of each cell, by the sweeps before this one, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from effbench.analysis.fence import are_enough, jumps_between, noise_fence
from effbench.analysis.halves import Half
from effbench.analysis.screen import IN_FENCE, Change
from effbench.metrics import METRICS
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo


def of(
    store: Store, before: SweepInfo, after: SweepInfo, halves: tuple[Half, Half], metrics: Collection[str]
) -> Callable[[str, str], float]:
    """(cell key, metric) -> its noise fence, 0 where there is none: of earlier sweeps named as `before`, in the
    environments of both halves.

    Where both ran on one host, what moves from host to host is no noise: its own sweeps tell, if there are enough.
    """
    environments = dict.fromkeys(key for half in halves for key in half.environments)
    ratios = [name for name in metrics if METRICS[name].compare == "ratio"]
    old, new = (half.host.get("hostname") for half in halves)
    hosts = (old, None) if old is not None and old == new else (None,)
    lines = [store.levels(before.id, environments, after.started_at, ratios, host) for host in hosts]

    def fence(key: str, metric: str) -> float:
        levels = [known.get((key, metric), {}).values() for known in lines]
        return next((noise_fence(*own) for own in levels if are_enough(jumps_between(own))), 0.0)

    return fence


def notes(changes: Sequence[Change], before: SweepInfo) -> list[str]:
    """That changes beyond the floor were taken for noise, and whose."""
    held = sum(IN_FENCE in (change.reason or "") for change in changes)
    if not held:
        return []
    line = f"named {before.name}" if before.name else "without a name"
    return [
        f"{held} row{'s' * (held != 1)} changed beyond the floor, but {IN_FENCE} that the earlier sweeps {line} give"
    ]

"""Rules of other projects that call a cell slower, written after their sources; for `detection.py`
and `changepoints.py`. They see only latencies."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from recorded_noise import DrawnTrials
from scipy import stats

OTAVA = """
import json, sys
from otava.analysis import compute_change_points
asked = json.load(sys.stdin)
found = []
for values in asked["series"]:
    limits = {"max_pvalue": asked["p"], "min_magnitude": asked["magnitude"]}
    points, _ = compute_change_points(values, **limits)
    found.append([int(point.index) for point in points])
json.dump(found, sys.stdout)
"""


@dataclass(frozen=True)
class Latencies:
    """What the rules see of a cell. `history_ms` (S,): geometric means of earlier sweeps, oldest
    first; None if there are none."""

    before: DrawnTrials
    after: DrawnTrials
    history_ms: np.ndarray | None = None


def torchbench(cell: Latencies) -> bool:
    """One process each; more than 7 % slower."""
    before, after = (side.figures[0, 0] for side in (cell.before, cell.after))
    return bool(after / before - 1 > 0.07)


def pyperf(cell: Latencies) -> bool:
    """A t-test of pooled values."""
    before, after = (pooled(side, 12) for side in (cell.before, cell.after))
    if after.mean() <= before.mean():
        return False
    return bool(stats.ttest_ind(after, before).pvalue < 0.05)


def asv(cell: Latencies) -> bool:
    """A Mann–Whitney test of pooled values, and a factor of 1.1."""
    before, after = (pooled(side, 4) for side in (cell.before, cell.after))
    if np.median(before) >= np.median(after) / 1.1:
        return False
    return bool(stats.mannwhitneyu(before, after).pvalue < 0.002)


def conbench(cell: Latencies) -> bool:
    """A z-score of 5: the mean of the last 100 results, and the standard deviation of each result's
    distance from the mean of the earlier ones (conbench/entities/history.py)."""
    if cell.history_ms is None:
        return False
    last = cell.history_ms[-100:]
    if len(last) < 2:
        return False
    earlier_means = np.cumsum(last)[:-1] / np.arange(1, len(last))
    before = np.concatenate([last[:1], earlier_means])
    deviation = float((last - before).std(ddof=1))
    after = float(cell.after.figures[:, 0].mean())
    return deviation > 0 and (after - float(last.mean())) / deviation > 5


RULES: dict[str, Callable[[Latencies], bool]] = {
    "TorchBench 7 %": torchbench,
    "pyperf t-test": pyperf,
    "asv U test, × 1.1": asv,
    "Conbench z = 5": conbench,
}


def pooled(drawn: DrawnTrials, each: int) -> np.ndarray:
    """Return (n × `each`,) means of consecutive values (n, V), as from a longer inner loop."""
    values = drawn.values_ms
    used = values.shape[1] // each * each
    parts = values[:, :used].reshape(len(values), each, -1)
    means: np.ndarray = parts.mean(axis=2)
    return means.ravel()


#: Takes logarithms (S, N) of S series; returns the positions of the change points of each.
Detector = Callable[[np.ndarray], list[list[int]]]


def otava(python: str, p: float, magnitude: float) -> Detector:
    """Return Otava's detector with these limits, in an interpreter with apache-otava."""

    def detect(series: np.ndarray) -> list[list[int]]:
        asked = json.dumps({"series": np.exp(series).tolist(), "p": p, "magnitude": magnitude})
        done = subprocess.run([python, "-c", OTAVA], input=asked, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python}: {done.stderr.strip().splitlines()[-1]}")
        found: list[list[int]] = json.loads(done.stdout)
        return found

    return detect

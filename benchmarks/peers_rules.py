"""The rules by which other projects call a benchmark slower, each on the data that the project would have.

Written from their sources and documentation, not copied; every function names where its rule stands. Times are in any
one unit, lower being better; all answer only whether the new side is *slower*.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

TORCHBENCH_DELTA = 0.07
ASV_P, ASV_FACTOR = 0.002, 1.1
#: Values a side up to which asv counts orderings exactly.
ASV_EXACT = 20
CONBENCH_Z, CONBENCH_LOOKBACK = 5.0, 100
#: pyperf's critical values: (degrees of freedom from which on, two-sided 5 % value of t).
PYPERF_CRITICAL = ((200, 1.960), (100, 1.984), (80, 1.990), (60, 2.000), (50, 2.009), (40, 2.021), (31, 2.042))
ORACLE = Path(__file__).resolve().parent / "otava_oracle.py"


def torchbench(before: float, after: float) -> bool:
    """TorchBench: one figure a side, slower by more than 7 %.

    pytorch/benchmark, `userbenchmark/torch-nightly/regression_detector.py`: DEFAULT_REGRESSION_DELTA_THRESHOLD = 0.07
    on (treatment - control) ÷ control; the figure is the median of one process. There both directions alarm; here,
    as for all rules, slowdowns count.
    """
    return (after - before) / before > TORCHBENCH_DELTA


def pyperf(before: Sequence[float], after: Sequence[float]) -> bool:
    """pyperf: Student's t-test over the pooled values of all processes, two-sided at 5 %, and the mean is higher.

    psf/pyperf, `pyperf/_utils.py` (`is_significant`, `tscore`, `pooled_sample_variance`, `tdist95conf_level`), used by
    `pyperf compare_to`. A value is the mean of an inner loop; by default 20 processes give 3 values each. Raises
    ValueError for sides of different lengths, as pyperf does.
    """
    old, new = np.asarray(before, float), np.asarray(after, float)
    if len(old) != len(new):
        raise ValueError("different number of values")
    difference = float(new.mean() - old.mean())
    freedom = len(old) + len(new) - 2
    variance = float(((old - old.mean()) ** 2).sum() + ((new - new.mean()) ** 2).sum()) / freedom
    if variance == 0:
        # pyperf calls what it cannot test significant
        return difference > 0
    return difference > 0 and difference / math.sqrt(2 * variance / len(old)) >= pyperf_critical(freedom)


def pyperf_critical(freedom: int) -> float:
    """Its table, coarse above 30 degrees of freedom."""
    for least, value in PYPERF_CRITICAL:
        if freedom >= least:
            return value
    from scipy.special import stdtrit

    return round(float(stdtrit(freedom, 0.975)), 3)


def asv(before: Sequence[float], after: Sequence[float]) -> bool:
    """asv: medians differ by more than a factor of 1.1, and Mann–Whitney's U over all values gives p < 0.002.

    airspeed-velocity/asv, `asv/_stats.py` (`is_different`, p_threshold=0.002) and `asv/commands/compare.py`
    (`_is_result_better`, `--factor`, default 1.1). A value is the mean of some 10 ms of calls; by default two rounds
    of one process each give up to five (docs/source/benchmarks.rst, `rounds`, `repeat`). Where the values are too few
    for any p below 0.002 asv compares intervals instead, which is not done here: ValueError.
    """
    if 1 / math.comb(len(before) + len(after), min(len(before), len(after))) >= ASV_P:
        raise ValueError("too few values for asv's U test")
    if not statistics.median(before) < statistics.median(after) / ASV_FACTOR:
        return False
    return mann_whitney(before, after) < ASV_P


def mann_whitney(before: Sequence[float], after: Sequence[float]) -> float:
    """Two-sided p of asv's `mann_whitney_u`: exact up to 20 values a side, else normal without corrections.

    Ties are broken the least significant way.
    """
    old, new = np.asarray(before, float), np.asarray(after, float)
    m, n = len(old), len(new)
    u = int((old[:, None] > new[None, :]).sum())
    ties = int((old[:, None] == new[None, :]).sum())
    # the value that ties allow nearest to the middle
    u = min(range(u, u + ties + 1), key=lambda value: abs(value - m * n / 2))
    u = min(u, m * n - u)
    if max(m, n) > ASV_EXACT:
        z = (u - m * n / 2) / math.sqrt(m * n * (m + n + 1) / 12)
        return math.erfc(-z / math.sqrt(2))
    # both tails: as likely as each other, and the middle counts once
    return min(1.0, 2 * math.fsum(_orderings(m, n)[: u + 1]) / math.comb(m + n, m))


@lru_cache(maxsize=8)
def _orderings(m: int, n: int) -> tuple[int, ...]:
    """In how many orderings of m and n values U is 0, 1, …, m n."""
    counts = np.zeros(m * n + 1, dtype=object)
    counts[0] = 1
    for i in range(1, m + 1):
        # times (1 - x^(n + i)) ÷ (1 - x^i)
        for u in range(m * n, n + i - 1, -1):
            counts[u] -= counts[u - n - i]
        for u in range(i, m * n + 1):
            counts[u] += counts[u - i]
    return tuple(int(count) for count in counts)


def conbench_z(history: Sequence[float], after: float) -> float | None:
    """Conbench's lookback z-score of a result against those of earlier commits, oldest first; None without one.

    conbench/conbench, `conbench/entities/history.py` (`_add_rolling_stats_columns_to_df`, `_calculate_z_score`): mean
    of the last 100 results, and the standard deviation of each one's distance from the mean of those before it.
    """
    last = np.asarray(history[-CONBENCH_LOOKBACK:], float)
    if len(last) < 2:
        return None
    before = np.concatenate([last[:1], np.cumsum(last)[:-1] / np.arange(1, len(last))])
    deviation = float((last - before).std(ddof=1))
    return None if deviation == 0 else (after - float(last.mean())) / deviation


def conbench(history: Sequence[float], after: float) -> bool:
    """Conbench: z-score above 5 (`conbench/entities/_comparator.py`, Z_SCORE = 5.0), on one mean a commit."""
    z = conbench_z(history, after)
    return z is not None and z > CONBENCH_Z


def conbench_alarms(series: Sequence[float]) -> list[int]:
    """Indices at which `conbench` alarms as a series grows.

    After a step its mean and deviation take the new level in slowly (a person marks it, `begins_distribution_change`);
    so alarms at neighbouring results are one: only the first is given.
    """
    alarms = [i for i in range(2, len(series)) if conbench(series[:i], series[i])]
    return [i for i in alarms if i - 1 not in alarms]


def otava(series: Sequence[Sequence[float]], python: str, **options: float) -> list[list[int]]:
    """Apache Otava's change points of each series: indices of the first results at a new level.

    apache/otava, `otava/analysis.py` (`compute_change_points`): E-Divisive in sliding windows with a t-test in the
    place of permutations (Fleming et al., "Hunter", doi:10.1145/3578244.3583719; Matteson and James,
    arXiv:1306.4933). Its command line takes window_len=50, max_pvalue=0.001, min_magnitude=0 (`otava/series.py`);
    `options` are others. Run by `python`, an interpreter that has apache-otava.
    """
    request = json.dumps({"options": options, "series": [list(map(float, one)) for one in series]})
    done = subprocess.run([python, str(ORACLE)], input=request, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{python} has no working apache-otava: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout)

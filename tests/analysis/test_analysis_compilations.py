"""Sweeps that differ by chance: in the kernels that autotuning chose, in processes that compile, in
noisy times."""

import math

import numpy as np
import pytest
from made_pairs import pair, side, timed
from made_sweeps import MIB, steps

from effbench.analysis.limits import limits_of
from effbench.analysis.verdicts import judge
from effbench.stats.intervals import TUNED_SD
from effbench.stats.significance import FLOOR, MOST_PAIRS, compare_pairs

TUNED = "the compiler chose other kernels"


def compiled(*kernels, rounds=5):
    """(compilation, fingerprint) of each round, which use the compilations in turn."""
    return [
        (number % len(kernels), f"{kernels[number % len(kernels)]}-tuned")
        for number in range(rounds)
    ]


@pytest.mark.parametrize(
    ("old", "new", "factor", "verdict", "said"),
    [
        (compiled("a"), compiled("b"), 1.08, "ambiguous", TUNED),
        (compiled("a", "b"), compiled("b", "a"), 1.08, "ambiguous", None),
        (compiled("a"), compiled("a"), 1.08, "slower", None),
        (compiled("a"), compiled("b"), 1.5, "slower", TUNED),
        (compiled(*"aaa"), compiled(*"bbb"), 1.08, "slower", "in each of 3 compilations"),
        (compiled(*"aa"), compiled(*"bb"), 1.08, "ambiguous", TUNED),
        ([(None, "a")] * 5, [(None, "b")] * 5, 1.08, "slower", None),  # nothing compiles
        ([], compiled("a"), 1.08, "slower", None),  # a sweep that did not record it
    ],
)
@pytest.mark.parametrize("interleaved", [False, True])
def test_other_kernels_widen_the_interval(old, new, factor, verdict, said, interleaved):
    cell = timed(steps(1, 0.001), steps(factor, 0.001), compiled=(old, new))
    (time,) = judge([cell], limits_of({}), interleaved=interleaved)
    assert time.verdict == verdict
    assert time.ratio == pytest.approx(factor)
    reason = time.reason or ""
    assert (said or "") in reason
    assert ("other kernels" in reason) is (said is not None)


def test_compilations_count_alike_in_figures_and_ratio():
    times = [[1, level, 1, level, 1] for level in (1.0, 1.21)]
    cell = timed(*times, compiled=[compiled("a", "b")] * 2)
    (row,) = judge([cell], limits_of({}))
    assert row.after / row.before == pytest.approx(row.ratio) == pytest.approx(1.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "noise"),
    [
        (1, 0.15),
        (2, 0.02),
        (3, 0.003),
    ],
)
def test_unchanged_sweeps_of_autotuned_cells_rarely_alarm(count, noise):
    rng = np.random.default_rng(count)
    alarmed = 0
    sweeps = 60
    for _ in range(sweeps):
        choices = rng.normal(0, TUNED_SD, (100, 2, count))[:, :, np.arange(5) % count]
        logs = choices + rng.normal(0, noise, (100, 2, 5))
        kernels = [compiled(*(f"{name}{number}" for number in range(count))) for name in "ab"]
        pairs = []
        for number, cell in enumerate(np.exp(logs).tolist()):
            pairs.append(timed(*cell, str(number), compiled=kernels))
        alarmed += any(row.gates for row in judge(pairs, limits_of({})))
    assert alarmed <= 0.05 * sweeps + 2


def test_pairs_find_five_percent_in_launch_bound_cells():
    """At the standard deviation that was recorded on an H200
    (results/reference/noise-h200.jsonl)."""
    logs = np.random.default_rng(1).normal([[0], [math.log(1.05)]], 0.025, (300, 2, MOST_PAIRS))
    confirmed = 0
    for old, new in np.exp(logs).tolist():
        test = compare_pairs(dict(enumerate(old)), dict(enumerate(new)))
        confirmed += test.low > 1 + FLOOR
    assert confirmed / 300 >= 0.9


@pytest.mark.parametrize(
    ("old", "new", "is_by_chance"),
    [
        (compiled("a", "b"), compiled("c", "d"), True),
        ([(0, "a")] * 5, [(0, "b")] * 5, False),  # not autotuned
        (compiled(*"aaa"), compiled(*"bbb"), False),
    ],
)
def test_autotuning_may_choose_another_number_of_kernels(old, new, is_by_chance):
    sides = side(compiled=old, kernels=[34] * 5), side(compiled=new, kernels=[42] * 5)
    (row,) = judge([pair(*sides)], limits_of({}))
    assert row.verdict == ("ambiguous" if is_by_chance else "slower")
    assert (TUNED in (row.reason or "")) is is_by_chance


def test_noisy_times_do_not_hide_memory():
    sizes = [
        side(peak_allocated_bytes=[int(v * MIB) for v in steps(size, 0.02)])
        for size in (100, 107.5)
    ]
    noisy = [timed(steps(1, 0.1), steps(1, 0.1), str(number)) for number in range(99)]
    assert judge([pair(*sizes), *noisy], limits_of({}))[0].verdict == "slower"

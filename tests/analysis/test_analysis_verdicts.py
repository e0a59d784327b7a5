"""Verdicts on pairs of results: statuses, ratios, counts, values per sweep, exceptions."""

import math

import pytest
from made_pairs import only, pair, side, timed
from made_sweeps import MIB, steps

from effbench.analysis.limits import limits_of
from effbench.analysis.verdicts import (
    FAILING,
    ONE_TIME,
    STATUS,
    Verdict,
    judge,
    record,
    verdict_of_statuses,
)
from effbench.core.cell import Status


@pytest.mark.parametrize("status", Status)
def test_statuses(status):
    assert verdict_of_statuses(None, status) == "new"
    assert verdict_of_statuses(status, None) == "missing"
    assert verdict_of_statuses(status, status) == (None if status.is_measured else "same")
    if not status.is_measured:
        assert verdict_of_statuses(Status.OK, status) == "broken"
        assert verdict_of_statuses(status, Status.OK) == "fixed"


@pytest.mark.parametrize(
    ("before", "after", "verdict", "reason"),
    [
        (side("ok"), side("error", "boom"), "broken", "error: boom (before ok)"),
        (side("oom", "20 GiB"), side("oom", "21 GiB"), "same", "oom: 21 GiB (before oom: 20 GiB)"),
        (side("oom", "20 GiB"), side("oom", "20 GiB"), "same", "oom: 20 GiB (before oom: 20 GiB)"),
        (side("oom"), side("error", "x"), "broken", "error: x (before oom)"),
        (side("error", "x"), side("degraded", "y"), "fixed", "degraded: y (before error: x)"),
        (side("ok"), None, "missing", None),
        (None, side("ok"), "new", None),
        (None, side("error", "boom"), "new", "error: boom"),
    ],
)
def test_a_changed_status_gives_one_row(before, after, verdict, reason):
    (change,) = judge([pair(before, after)], limits_of({}))
    assert change.metric == STATUS
    assert change.verdict == verdict
    assert change.reason == reason
    assert change.gates is (change.verdict in FAILING)


@pytest.mark.parametrize(
    ("status", "on_missing", "gates"),
    [
        ("ok", "fail", True),
        ("ok", "ignore", False),
        ("oom", "fail", False),
    ],
)
def test_missing_cells(status, on_missing, gates):
    limits = limits_of({"on_missing": on_missing})
    (change,) = judge([pair(side(status, "x"), None, why="gone")], limits)
    assert change.verdict == Verdict.MISSING
    assert change.gates == gates
    assert ("it gave no figures before: oom: x" in change.reason) is (status == "oom")


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [
        (1.05, "slower"),
        (0.95, "faster"),
        (1.005, "same"),
        (1.019, "ambiguous"),
        (1.021, "slower"),
    ],
)
def test_a_time_against_the_floor(factor, verdict):
    change = only(steps(1, 0.001), steps(factor, 0.001), "latency_ms")
    assert change.verdict == verdict
    assert change.gates == (verdict == "slower")
    assert change.low < factor < change.high
    assert change.reason is None


def test_an_exception_is_a_reason():
    rules = {"exceptions": [{"model": "mlp", "floor": 0.1, "reason": "known"}]}
    change = only(steps(1, 0.001), steps(1.05, 0.001), "latency_ms", rules)
    assert change.verdict == "same"
    assert change.reason == "by exception: known"


# --- false discovery control ---


RETIRED = {"exceptions": [{"model": "old", "ignore": True, "reason": "retired"}]}
CALM = steps(1, 0.02)
QUIET = [
    timed(
        CALM,
        CALM,
        str(number),
        model="old",
    )
    for number in range(99)
]
LOUD = [
    timed(
        [1.0] * 5,
        [2.0] * 5,
        str(number),
        model="old",
    )
    for number in range(99)
]


def odd(noise, others, settings=None):
    """The row of a cell that is 7.5 % slower, among others."""
    cell = timed(steps(1, noise), steps(1.075, noise), "odd")
    rows = judge([cell, *others], limits_of(settings or {}))
    return next(row for row in rows if row.key == "odd")


@pytest.mark.parametrize(
    ("noise", "others", "settings", "verdict"),
    [
        (0.02, [], {}, "slower"),
        (0.02, QUIET, {}, "ambiguous"),
        # what is ignored is no test of the correction, nor does it lend significance
        (0.02, QUIET, RETIRED, "slower"),
        (0.03, [*QUIET[:3], *LOUD], {}, "slower"),
    ],
)
def test_the_correction_is_over_all_cells_that_are_not_ignored(noise, others, settings, verdict):
    row = odd(noise, others, settings)
    assert row.verdict == verdict
    reason = "not significant among all rows" if verdict == "ambiguous" else None
    assert row.reason == reason


# --- launch-bound cells ---


@pytest.mark.parametrize(
    ("metric", "factor", "bounds", "verdict"),
    [
        ("latency_ms", 1.3, ("launch", "launch"), "ambiguous"),
        ("latency_ms", 1.9, ("launch", "launch"), "slower"),
        ("latency_ms", 1.3, ("memory", "launch"), "ambiguous"),
        ("latency_ms", 1.3, ("memory", "memory"), "slower"),
        ("period_ms", 1.3, ("launch", "launch"), "ambiguous"),
        ("gpu_busy_ms", 1.3, ("launch", "launch"), "slower"),
    ],
)
def test_host_metrics_alarm_beyond_what_the_trials_can_show(metric, factor, bounds, verdict):
    change = only(
        steps(1, 0.1),
        steps(factor, 0.1),
        metric,
        bounds=bounds,
    )
    assert change.verdict == verdict
    assert ("launch-bound" in (change.reason or "")) is (verdict == "ambiguous")


@pytest.mark.parametrize(("gap", "verdict"), [(0, "slower"), (5, "ambiguous")])
def test_parts_of_a_launch_bound_cell_in_different_rounds(gap, verdict):
    """As in a sweep that was resumed after an update: they have no pairs."""
    before = [*steps(1, 0.001), *[None] * gap]
    after = [*[None] * gap, *steps(1.03, 0.001)]
    (change,) = judge([timed(before, after, bound="launch")], limits_of({}), interleaved=True)
    assert change.verdict == verdict
    noise = "launch-bound: up to 5.0 % may be noise of the host"
    assert (noise in (change.reason or "")) is (verdict == "ambiguous")


# --- counts, sizes and values per sweep ---


LEAST = {
    "graph_pool_bytes": 2 * MIB,
    "peak_allocated_bytes": MIB,
    "compile_cold_s": 1.0,
    "rel_error": 1e-4,
}
LIMITS = {
    "limits": {name: {"least": value} for name, value in LEAST.items()},
    "exceptions": [{"metric": "recompiles", "least": 2, "reason": "known"}],
}
WIDE = [10, 12, 11, 10, 12]
SOME, LARGE = ([0, *[size * MIB] * 4] for size in (64, 1000))  # one trial without a pool


@pytest.mark.parametrize(
    ("metric", "before", "after", "verdict"),
    [
        ("kernels", [0], [0], "same"),
        ("kernels", [0], [1], "slower"),  # a count needs no second trial
        ("kernels", [3], [2], "faster"),
        ("kernels", WIDE, WIDE[::-1], "same"),
        ("kernels", WIDE, [13], "slower"),
        ("kernels", WIDE, [11], "ambiguous"),
        ("recompiles", [10], [12], "same"),
        ("recompiles", [10], [13], "slower"),
        ("compile_cold_s", [2.0], [2.9], "same"),
        ("compile_cold_s", [10.0] * 2, [12.5] * 2, "same"),
        ("compile_cold_s", [4.0, 5.0], [4.5, 7.0], "ambiguous"),
        ("compile_cold_s", [4.0, 5.0], [6.1, 7.0], "ambiguous"),
        ("compile_cold_s", [4.0, 5.0], [6.3, 7.0], "slower"),
        ("rel_error", [0.0], [5e-5], "same"),
        ("rel_error", [0.0], [1e-2], "slower"),
        ("graph_pool_bytes", [0] * 5, [2 * MIB] * 5, "same"),
        ("graph_pool_bytes", [0] * 5, [3 * MIB] * 5, "slower"),
        ("graph_pool_bytes", SOME, [65 * MIB] * 5, "ambiguous"),
        ("graph_pool_bytes", SOME, [99 * MIB] * 5, "slower"),
        # the floor also holds for sizes that are 0 in a trial
        ("graph_pool_bytes", LARGE, [1003 * MIB] * 5, "ambiguous"),
        ("graph_pool_bytes", LARGE, [1021 * MIB] * 5, "slower"),
        ("peak_allocated_bytes", [4 * MIB] * 5, [5 * MIB] * 5, "same"),
        ("peak_allocated_bytes", [4 * MIB] * 5, [6 * MIB] * 5, "slower"),
    ],
)
def test_counts_sizes_and_values_per_sweep(metric, before, after, verdict):
    change = only(
        before,
        after,
        metric,
        LIMITS,
    )
    assert change.verdict == verdict
    assert ("its trials differ" in (change.reason or "")) is (verdict == "ambiguous")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([2.0], [7.4]),
        ([7.4], [2.0] * 3),
    ],
)
def test_one_compilation_on_a_busy_machine_may_take_several_times_as_long(before, after):
    change = only(
        before,
        after,
        "compile_cold_s",
        LIMITS,
    )
    assert change.verdict is Verdict.AMBIGUOUS
    assert ONE_TIME in change.reason


# --- missing and impossible figures ---


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([1.0], [None], "not measured now"),
        ([None], [1.0], "not measured before"),
        ([1.0], [0.0], "not measured now"),
    ],
)
def test_a_metric_of_one_side_only_has_a_row(before, after, reason):
    change = only(before, after, "latency_ms")
    assert change.verdict == Verdict.AMBIGUOUS
    assert change.ratio is None
    assert change.gates is False
    assert change.reason.startswith(reason)


def test_missing_figures_are_omitted():
    quiet = [1.0, 1.001, 1.0, 1.001, 1.002]
    change = only([0.0, *quiet[:4]], quiet, "gpu_busy_ms")
    assert change.verdict == Verdict.SAME
    assert change.before == pytest.approx(1.0005)


@pytest.mark.parametrize("bound", [None, "launch"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("before", "after", "verdict"), [(1e-300, 1e300, "slower"), (5e-324, 5e-324, "same")]
)
def test_figures_at_the_ends_of_the_floats(bound, interleaved, before, after, verdict):
    cell = timed([before] * 5, [after] * 5, bound=bound)
    (row,) = judge([cell], limits_of({}), interleaved=interleaved)
    assert row.verdict == verdict
    values = [value for value in record(row).values() if isinstance(value, float)]
    assert all(map(math.isfinite, values))


def test_the_most_important_change_comes_first():
    factors = {
        "a": 1.1,
        "b": 1.3,
        "c": 1 / 1.3,
        "d": 1 / 1.1,
        "e": 1.0,
    }
    cells = [timed(steps(1, 0.001), steps(by, 0.001), key) for key, by in factors.items()]
    fewer = pair(side(kernels=[3]), side(kernels=[0]), "f")
    single = timed([1.0], [9.0], "g")
    found = judge([*cells, fewer, single], limits_of({}))
    assert [change.key for change in found] == ["b", "a", "g", "f", "c", "d", "e"]


def test_a_status_can_be_ignored_by_an_exception():
    rule = {"metric": "status", "ignore": True, "reason": "rewritten"}
    (change,) = judge([pair(side("ok"), side("error", "boom"))], limits_of({"exceptions": [rule]}))
    assert change.verdict == "broken"
    assert not change.gates
    assert change.reason.endswith("; ignored: rewritten")

"""Cells on several devices against the same cells on one."""

import math

import pytest
from made_sweeps import a_cell, environment, steps

from effbench import results
from effbench.analysis.cell_pairs import pairs_for
from effbench.analysis.scaling import scalings_of
from effbench.core.labels import label_rows
from effbench.store import Store


def times(latency, period=None, spread=0.01):
    return {"latency_ms": steps(latency, spread), "period_ms": period and steps(period, spread)}


@pytest.fixture
def scalings(made):
    """Returns what `scalings_of` finds in sweeps of these cells, one sweep per mapping."""

    def find(*sweeps, **facts):
        ids = [made.sweep(cells, **facts) for cells in sweeps]
        with Store.open(made.path) as store:
            return scalings_of(label_rows(store.results(*ids)))

    return find


def cells_of(parallel, **more):
    return a_cell(**more), a_cell(parallel=parallel, **more)


@pytest.mark.parametrize(
    ("parallel", "period", "efficiency"),
    [
        ("tp2", 1.0, 1.0),
        ("tp2", 2.0, 0.5),
        ("tp4", 1.0, 0.5),
        ("ddp4", 2.0, 1.0),
        ("fsdp2", 4.0, 0.5),
    ],
)
def test_the_efficiency_is_the_best_time_divided_by_the_measured_one(
    scalings, parallel, period, efficiency
):
    single, several = cells_of(parallel)
    (found,) = scalings({single: times(9.0, 2.0), several: times(9.0, period)})
    assert found.metric == "period_ms"
    assert found.time_ratio.value == pytest.approx(period / 2)
    assert found.efficiency.value == pytest.approx(efficiency)


def test_the_latency_is_compared_if_a_side_has_no_period(scalings):
    single, several = cells_of("tp2")
    (found,) = scalings({single: times(2.0, 1.0), several: times(1.0)})
    assert (found.metric, found.time_ratio.value) == ("latency_ms", pytest.approx(0.5))


def test_the_interval_has_the_errors_of_both_sides(scalings):
    single, several = cells_of("tp2")
    (exact,) = scalings({single: times(2.0, spread=0.0), several: times(1.0)})
    (both,) = scalings({single: times(2.0), several: times(1.0)})

    def width(interval):
        return math.log(interval.high / interval.low)

    assert width(exact.efficiency) < width(both.efficiency)
    assert width(both.efficiency) == pytest.approx(width(both.time_ratio))
    assert both.efficiency.low < both.efficiency.value < both.efficiency.high


def test_a_single_trial_has_no_interval(scalings):
    single, several = cells_of("tp2")
    one = {"latency_ms": 2.0, "period_ms": None}
    (found,) = scalings({single: one, several: one}, rounds=1)
    assert (found.efficiency.low, found.efficiency.high) == (None, None)


@pytest.mark.parametrize(
    "other",
    [
        a_cell("default"),
        a_cell(bs=64),
        a_cell(dtype="float32"),
        a_cell(parallel="ddp2"),
        a_cell(settings={"fullgraph": True}),
    ],
)
def test_cells_that_differ_in_something_else_are_not_compared(scalings, other):
    assert scalings({other: {}, a_cell(parallel="tp2"): {}}) == []


def test_cells_of_other_sweeps_are_not_compared(scalings):
    single, several = cells_of("tp2")
    assert scalings({single: {}}, {several: {}}) == []


def test_cells_of_other_machines_are_not_compared(made):
    single, several = cells_of("tp2")
    sweep = made.sweep({single: {}, several: None})
    made.sweep({several: {}}, into=sweep, env=environment(gpu_name="NVIDIA A100"))
    with Store.open(made.path) as store:
        assert scalings_of(label_rows(store.results(sweep))) == []


@pytest.mark.parametrize("failed", [0, 1])
def test_a_side_that_is_not_ok_is_not_compared(scalings, failed):
    cells = cells_of("tp2")
    figures = {cell: {} for cell in cells}
    figures[cells[failed]] = {"status": "incorrect", "reason": "why"}
    assert scalings(figures) == []


@pytest.mark.parametrize("marked", [0, 1])
def test_a_mark_of_a_side_marks_the_comparison(scalings, marked):
    cells = cells_of("tp2")
    figures = {cell: {} for cell in cells}
    figures[cells[marked]] = {"disturbance": "host busy"}
    (found,) = scalings(figures)
    assert found.disturbance == "host busy"


# --- the axis elsewhere ---


@pytest.fixture
def swept(made):
    """The id of a sweep of one cell on one device, on two and, as an error, on four."""
    single, two = cells_of("tp2")
    failed = {"status": "error", "reason": "rank 1 of 4: RuntimeError: no"}
    return made.sweep({single: times(2.0), two: times(1.0), a_cell(parallel="tp4"): failed})


def test_compare_takes_one_device_as_none(swept, effbench):
    done = effbench("compare", "last", "--by", "parallel", "--values", "none", "tp2")
    assert done.code == 0
    assert "0.500 (" in done.out and "latency_ms" in done.out
    assert "parallel=" not in done.out.partition("\n")[2]


def test_failures_name_the_value(swept, effbench):
    done = effbench("ls", "--failures")
    assert "parallel=tp4" in done.out and "rank 1 of 4" in done.out


def test_explain_takes_one_device_as_none(made, swept):
    sides = [{"sweep": swept, "parallel": parallel} for parallel in ("none", "tp2")]
    with Store.open(made.path) as store:
        (pair,) = pairs_for(store, *sides)
    assert (pair.first_name, pair.second_name) == ("parallel=none", "parallel=tp2")


def test_check_compares_each_value_with_itself(made, swept, effbench):
    single, two = cells_of("tp2")
    assert effbench("baseline", "set", "main", swept).code == 0
    made.sweep({single: times(2.0), two: times(1.5)})
    done = effbench("check", "--baseline", "main", "--set", "on_missing=ignore")
    slower = [line for line in done.out.splitlines() if "slower" in line and "latency_ms" in line]
    assert done.code == 1
    assert len(slower) == 1 and "parallel=tp2" in slower[0]


def test_results_have_a_column_for_the_axis(made, swept):
    frame = results(made.path)
    assert [*frame["parallel"]] == ["none", "tp2", "tp4"]

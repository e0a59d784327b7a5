"""Cells on several devices against the same cells on one."""

import pytest
from made_sweeps import a_cell, steps

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


def test_a_cell_on_several_devices_is_paired_with_the_same_cell_on_one(scalings):
    single, several = cells_of("tp2")
    (pair,) = scalings({single: times(9.0, 4.0), several: times(9.0, 2.5)})
    assert (pair.single.period_ms, pair.several.period_ms) == pytest.approx((4.0, 2.5))
    assert (pair.name, pair.metric) == ("tp2", "period_ms")
    assert (pair.efficiency, pair.time_ratio) == pytest.approx((0.8, 0.625))


def test_the_latency_is_compared_if_a_side_has_no_period(scalings):
    single, several = cells_of("tp2")
    (pair,) = scalings({single: times(2.0, 1.0), several: times(1.0)})
    assert (pair.metric, pair.time_ratio) == ("latency_ms", pytest.approx(0.5))


def test_results_without_an_efficiency_are_not_paired(scalings):
    single, several = cells_of("tp2")
    assert scalings({single: {"status": "oom", "reason": "why"}, several: {}}) == []


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

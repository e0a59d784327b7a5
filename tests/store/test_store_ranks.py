"""Figures of cells that use several devices."""

import math

import pytest
from made_sweeps import a_cell, environment, steps

from effbench import results
from effbench.core.cell import Status, Trial
from effbench.store import Store


@pytest.mark.parametrize(
    ("parallel", "batches"),
    [(None, 1), ("tp2", 1), ("ddp2", 2), ("fsdp4", 4), ("of-a-later-version", 1)],
)
def test_the_throughput_counts_the_batches_of_all_ranks(made, parallel, batches):
    cell = a_cell(bs=8, parallel=parallel)
    made.sweep({cell: {"period_ms": 2.0}})
    with Store.open(made.path) as store:
        (result,) = store.results()
    assert result.throughput_per_s == pytest.approx(4000 * batches)


# --- scaling efficiency ---

SINGLE, TWO = a_cell(), a_cell(parallel="tp2")


def times(latency, period=None, spread=0.01):
    return {"latency_ms": steps(latency, spread), "period_ms": period and steps(period, spread)}


@pytest.fixture
def last_result(made):
    """Returns the result of the last cell of a sweep with these figures of each cell."""

    def find(cells, **facts):
        made.sweep(cells, **facts)
        with Store.open(made.path) as store:
            return store.results()[-1]

    return find


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
def test_the_efficiency_is_the_ideal_period_divided_by_the_measured_one(
    last_result, parallel, period, efficiency
):
    several = a_cell(parallel=parallel)
    result = last_result({SINGLE: times(9.0, 2.0), several: times(9.0, period)})
    assert result.scaling_efficiency == pytest.approx(efficiency)


def test_the_latency_counts_if_a_cell_has_no_period(last_result):
    result = last_result({SINGLE: times(2.0, 1.0), TWO: times(1.0)})
    assert result.scaling_efficiency == pytest.approx(1.0)


def test_the_interval_of_the_efficiency_has_the_errors_of_both_cells(last_result):
    def width(spread):
        result = last_result({SINGLE: times(2.0, spread=spread), TWO: times(1.5)})
        low, high = result.scaling_efficiency_ci_low, result.scaling_efficiency_ci_high
        assert low < result.scaling_efficiency < high
        return math.log(high / low)

    assert width(0.0) < width(0.01)


def test_an_efficiency_of_single_trials_has_no_interval(last_result):
    one = {"latency_ms": 2.0, "period_ms": None}
    result = last_result({SINGLE: one, TWO: one}, rounds=1)
    assert result.scaling_efficiency == pytest.approx(0.5)
    assert result.scaling_efficiency_ci_low is None


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
def test_cells_that_differ_in_something_else_give_no_efficiency(last_result, other):
    assert last_result({other: {}, TWO: {}}).scaling_efficiency is None


def test_one_device_has_no_efficiency(last_result):
    assert last_result({TWO: {}, SINGLE: {}}).scaling_efficiency is None


def test_cells_of_another_sweep_give_no_efficiency(made, last_result):
    made.sweep([SINGLE])
    assert last_result([TWO]).scaling_efficiency is None


def test_cells_of_another_machine_give_no_efficiency(made, last_result):
    sweep = made.sweep({SINGLE: {}, TWO: None})
    elsewhere = environment(gpu_name="NVIDIA A100")
    assert last_result([TWO], into=sweep, env=elsewhere).scaling_efficiency is None


@pytest.mark.parametrize("failed", [SINGLE, TWO])
def test_a_cell_that_is_not_ok_gives_no_efficiency(last_result, failed):
    figures = {SINGLE: {}, TWO: {}, failed: {"status": "incorrect", "reason": "why"}}
    assert last_result(figures).scaling_efficiency is None


@pytest.mark.parametrize("marked", [SINGLE, TWO])
def test_the_efficiency_is_marked_if_a_cell_is(last_result, marked):
    figures = {SINGLE: {}, TWO: {}, marked: {"disturbance": "host busy"}}
    assert last_result(figures).scaling_disturbance == "host busy"


@pytest.mark.parametrize("order", [(SINGLE, TWO), (TWO, SINGLE)])
def test_the_efficiency_does_not_depend_on_the_order_of_the_trials(store, here, begin, order):
    sweep = begin(store, [SINGLE, TWO])
    for cell in order:
        store.add_trial(sweep, here, Trial(cell.key, 0, Status.OK, latency_ms=2.0))
    single, two = store.results(sweep)
    assert (single.scaling_efficiency, two.scaling_efficiency) == (None, pytest.approx(0.5))


def test_a_frame_has_the_efficiency(made):
    made.sweep({SINGLE: times(2.0), TWO: times(1.0)})
    frame = results(made.path)
    assert [*frame["scaling_efficiency"].isna()] == [True, False]
    assert frame["scaling_efficiency"][1] == pytest.approx(1.0)

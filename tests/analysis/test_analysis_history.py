"""Series, states, events and coincidences from rows of results, without a database."""

import math

import numpy as np
import pytest
from made_history import GPU, STEP, Made, ack, latencies, noisy, series

from effbench.analysis.history import SeriesId
from effbench.analysis.limits import STATUS
from effbench.stats.changepoints import find_changes


def test_a_slower_cell():
    found = latencies(STEP).judge()
    (event,) = found.changes
    assert (event.before_sweep, event.after_sweep, event.kind, event.word) == (
        "s014",
        "s015",
        "change",
        "slower",
    )
    assert event.worse and event.alarms and event.undone_sweep is None
    assert event.old == pytest.approx(1.0, rel=0.01) and event.new == pytest.approx(1.1, rel=0.01)
    assert event.low < 1.1 < event.high
    assert found.states == {SeriesId("c", GPU, "latency_ms"): "changed"}


def test_an_undone_change():
    second, first = latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.0, 2)).judge().changes
    assert (first.undone_sweep, first.state) == (second.after_sweep, "undone")
    assert second.undone_sweep is None


def test_a_change_of_the_newest_sweep_is_unconfirmed():
    (event,) = latencies([*noisy(20), 1.3]).judge().changes
    assert (event.kind, event.after_sweep, event.state) == ("recent", "s020", "unconfirmed")


THIRDS = [value if place % 3 else None for place, value in enumerate(noisy(20) + noisy(20, 1.1, 1))]
GAP = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]


@pytest.mark.parametrize(
    ("values", "before", "after"), [(THIRDS, "s019", "s020"), (GAP, "s009", "s020")]
)
def test_sweeps_without_a_result(values, before, after):
    (event,) = latencies(values).judge().changes
    assert (event.before_sweep, event.after_sweep) == (before, after)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_impossible_figures_count_as_not_measured(bad):
    values = noisy(10) + noisy(10, 1.1, 1)
    values[3] = values[14] = bad
    found = latencies(values).judge("latency_ms").changes
    assert [event.after_sweep for event in found] == ["s010"]


@pytest.mark.parametrize("status", ["degraded", "error"])
def test_times_of_other_statuses_do_not_count(status):
    made = latencies(noisy(20))
    made.sweep().result(latency_ms=5.0, status=status)
    assert made.judge("latency_ms").changes[0].series.metric == STATUS


def test_where_a_change_may_lie():
    logs = np.random.default_rng(20).normal(0, 0.03, 50) + 0.1 * (np.arange(50) >= 25)
    made = latencies(np.exp(logs).tolist())
    (event,) = made.judge("latency_ms").changes
    (change,) = find_changes(logs.tolist()).changes
    assert change.earliest < change.at < change.latest
    places = (event.earliest_sweep, event.after_sweep, event.latest_sweep)
    assert places == tuple(f"s{place:03}" for place in (change.earliest, change.at, change.latest))
    # an acknowledgement holds within one sweep of these
    for place, state in ((change.earliest - 1, "acknowledged"), (change.earliest - 2, "open")):
        assert made.judge(acknowledged=[ack(f"s{place:03}")]).changes[0].state == state


def test_the_worst_open_change_comes_first_and_then_the_newest():
    made = Made()
    for place in range(30):
        made.sweep()
        made.result("a", latency_ms=1.1 if place >= 10 else 1.0)
        made.result("b", latency_ms=1.3 if place >= 8 else 1.0)
        made.result("c", latency_ms=0.5 if place >= 10 else 1.0)
        made.result("d", latency_ms=0.9 if place >= 20 else 1.0)
    found = made.judge("latency_ms").changes
    assert [event.series.cell_key for event in found] == ["b", "a", "d", "c"]


def test_another_machine_or_interpreter_is_another_series():
    made = Made()
    made.environment("b", gpu_name="NVIDIA A100")
    made.environment("c", flags={"interpreter": "/b/python"}, torch_version="2.13")
    for place, value in enumerate(noisy(30)):
        made.sweep().result(latency_ms=value).result(environment="c", latency_ms=value * 1.2)
        if place >= 15:
            made.result(environment="b", latency_ms=value * 3)
    found = made.judge("latency_ms")
    places = {GPU, "NVIDIA A100", f"{GPU} (interpreter /b/python)"}
    assert (found.changes, {key.place for key in found.states}) == ([], places)


def test_two_similar_hosts_are_one_series():
    """The result that is ok counts, and that of most trials."""
    made = Made()
    made.environment("b", driver_version="580")
    for value in noisy(20):
        made.sweep().result(latency_ms=value)
        made.result(environment="b", latency_ms=value * 2, trials=1)
    made.sweep().result(latency_ms=1.0).result(environment="b", status="error", trials=9)
    found = made.judge("latency_ms")
    assert found.changes == [] and set(found.states.values()) == {"steady"}


@pytest.mark.parametrize("order", ["xy", "yx"])
def test_of_a_resumed_sweep_the_last_environment_counts(order):
    made = Made()
    for key in order:
        made.environment(key)
    made.sweep(host={"environments": dict.fromkeys(order)})
    for key in "xy":
        made.result(environment=key, latency_ms=1.0)
    ((row,),) = (track.points for track in made.judge().tracks)
    assert row.environment_id == order[-1]


def test_what_coincides():
    made = Made()
    made.environment("b", torch_version="2.13", driver_version="580", flags={"TORCH_X": "1"})
    for place, value in enumerate(STEP):
        environment, rounds, host = ("b", 3, "two") if place >= 15 else ("a", 5, "one")
        made.sweep(protocol={"rounds": rounds}, host={"hostname": host})
        made.result(environment=environment, latency_ms=value)
    assert made.judge().changes[0].coincides == (
        "torch 2.11 -> 2.13",
        "driver 570 -> 580",
        "TORCH_X none -> 1",
        "protocol rounds 5 -> 3",
        "host one -> two",
    )


def test_counters():
    made = series(kernels=[12] * 5 + [11] * 5, graph_breaks=[0] * 7 + [2] * 3, recompiles=[0] * 10)
    breaks, kernels = made.judge().changes
    assert (breaks.series.metric, breaks.old, breaks.new, breaks.ratio) == (
        "graph_breaks",
        0,
        2,
        None,
    )
    assert breaks.worse and breaks.after_sweep == "s007" and breaks.word == "more"
    assert kernels.worse is False and kernels.ratio == pytest.approx(11 / 12)


def test_a_cell_that_does_not_run_as_its_mode_promises_has_counts():
    made = series(status=["degraded"] * 4, graph_breaks=[0, 0, 2, 2], latency_ms=[1.0] * 4)
    assert [event.series.metric for event in made.judge().changes] == ["graph_breaks"]


@pytest.mark.parametrize(
    ("metric", "before", "after", "expected"),
    [
        ("compile_cold_s", 4.0, 6.0, ["s010"]),
        ("compile_cold_s", 10.0, 12.0, []),
        ("compile_cold_s", 1.0, 1.9, []),
        ("rel_error", 1e-5, 1e-2, ["s010"]),
        ("rel_error", 1e-6, 5e-5, []),
        ("rel_error", 0.01, 0.03, []),
        ("rel_error", 0.0, 5e-5, []),
    ],
)
def test_the_limits_of_checks_apply(metric, before, after, expected):
    levels = [before] * 10 + [after] * 10
    figures = [level * value for level, value in zip(levels, noisy(20), strict=True)]
    found = series(**{metric: figures}).judge(metric).changes
    assert [event.after_sweep for event in found] == expected


@pytest.mark.parametrize(
    ("metric", "before", "after", "word"),
    [
        ("rel_error", 0.0, 1e-3, "more"),
        ("rel_error", 1e-3, 0.0, "less"),
        ("graph_pool_bytes", 0, 2**24, "more"),
    ],
)
def test_figures_of_0(metric, before, after, word):
    (change,) = series(**{metric: [before] * 6 + [after] * 6}).judge(metric).changes
    assert change.word == word
    assert (change.old, change.new) == (pytest.approx(before), pytest.approx(after))
    assert change.ratio == (0.0 if before else None)


def compiling(*levels):
    """A cell whose compile times are six sweeps on each of these levels."""
    return series(
        compile_cold_s=[level * (1 + 0.001 * (place % 3)) for level in levels for place in range(6)]
    )


def test_small_changes_in_a_row_are_a_large_one():
    (change,) = compiling(2.0, 2.9, 3.8).judge("compile_cold_s").changes
    assert (change.after_sweep, change.alarms, change.word) == ("s012", True, "slower")
    assert (change.old, change.new, change.ratio) == pytest.approx((2.0, 3.8, 1.9), rel=0.01)


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("ok ok degraded", [("broken", "s002", None)]),
        ("ok error oom ok ok", [("fixed", "s003", None), ("broken", "s001", "s003")]),
        ("error ok ok", []),
        ("error error ok error ok", [("fixed", "s002", None)]),
        ("ok error ok error error", [("broken", "s003", None)]),
        (
            "ok error error ok ok error",
            [("broken", "s005", None), ("fixed", "s003", "s005"), ("broken", "s001", "s003")],
        ),
        ("ok crashed ok ok", []),  # over at once
    ],
)
def test_statuses(statuses, expected):
    made = Made()
    for status in statuses.split():
        reason = None if status == "ok" else f"why {status}"
        made.sweep().result(status=status, reason=reason, latency_ms=1.0)
    found = made.judge("latency_ms").changes
    assert [(one.kind, one.after_sweep, one.undone_sweep) for one in found] == expected
    for event in found:
        assert event.series == SeriesId("c", GPU, STATUS) and event.reason.startswith("why ")


def test_states():
    made = Made()
    for place, value in enumerate(noisy(40)):
        made.sweep().result("steady", latency_ms=value)
        made.result("changed", latency_ms=value * (1.2 if place < 20 else 1))
        if place >= 36:
            made.result("short", latency_ms=value)
    states = made.judge("latency_ms").states
    assert len(states) == 3 and all(key.cell_key == state for key, state in states.items())


def test_times_need_more_sweeps_than_counters():
    states = series(latency_ms=[1.0] * 4, kernels=[3] * 4).judge().states
    assert {key.metric: state for key, state in states.items()} == {
        "latency_ms": "short",
        "kernels": "steady",
    }


@pytest.mark.parametrize(("period", "states"), [(5, ["open", *["undone"] * 6]), (1, [])])
def test_a_series_that_switches_between_two_levels(period, states):
    """A pull request's sweeps among those of the main branch: each switch that lasts counts."""
    values = noisy(40)
    made = latencies([value * (1.2 if i // period % 2 else 1) for i, value in enumerate(values)])
    assert [event.state for event in made.judge("latency_ms").changes] == states

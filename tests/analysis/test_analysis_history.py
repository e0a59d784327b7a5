"""Series, states, changes and coincidences from rows of results, without a database."""

import math

import numpy as np
import pytest
from made_history import GPU, STEP, Made, latencies, noisy, series

from effbench.analysis.limits import STATUS, limits_of


def ends(change):
    """The positions of the sweeps before and after a change."""
    return change.before.at, change.after.at


def test_a_slower_cell():
    found = latencies(STEP).judge()
    (change,) = found.changes
    assert ends(change) == (14, 15)
    assert (change.word, change.state) == ("slower", "open")
    assert change.old == pytest.approx(1.0, rel=0.01)
    assert change.new == pytest.approx(1.1, rel=0.01)
    assert change.ratio.low < 1.1 < change.ratio.high
    assert found.states == {"changed": 1}


def test_only_the_last_change_of_a_series_is_open():
    second, first = latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.2, 2)).judge().changes
    assert (first.after.at, first.state) == (10, "past")
    assert (second.after.at, second.state) == (20, "open")


def test_the_newest_sweep_alone_is_no_change():
    found = latencies([*noisy(20), 1.3]).judge()
    assert found.changes == []
    assert found.states == {"steady": 1}


THIRDS = [value if place % 3 else None for place, value in enumerate(noisy(20) + noisy(20, 1.1, 1))]
GAP = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]


@pytest.mark.parametrize(("values", "expected"), [(THIRDS, (19, 20)), (GAP, (9, 20))])
def test_sweeps_without_a_result(values, expected):
    (change,) = latencies(values).judge().changes
    assert ends(change) == expected


@pytest.mark.parametrize("bad", [math.nan, 0.0])
def test_impossible_figures_count_as_not_measured(bad):
    values = noisy(10) + noisy(10, 1.1, 1)
    values[3] = values[14] = bad
    assert [change.after.at for change in latencies(values).judge("latency_ms").changes] == [10]


@pytest.mark.parametrize("status", ["degraded", "error"])
def test_times_of_other_statuses_do_not_count(status):
    made = latencies(noisy(20))
    made.sweep().result(latency_ms=5.0, status=status)
    assert made.judge("latency_ms").changes[0].metric == STATUS


def test_the_worst_open_change_comes_first_and_then_the_newest():
    made = Made()
    steps = {
        "a": (10, 1.1),
        "b": (8, 1.3),
        "c": (10, 0.5),
        "d": (20, 0.9),
    }
    for place in range(30):
        made.sweep()
        for mode, (at, level) in steps.items():
            made.result(mode, latency_ms=level if place >= at else 1.0)
    history = made.judge("latency_ms")
    modes = [history.cells[change.track.cell_key].mode_name for change in history.changes]
    assert modes == ["b", "a", "d", "c"]


def test_another_machine_or_interpreter_is_another_series():
    made = Made()
    made.environment("b", gpu_name="NVIDIA A100")
    made.environment("c", flags={"interpreter": "/b/python"}, torch_version="2.13")
    for place, value in enumerate(noisy(30)):
        made.sweep().result(latency_ms=value).result(environment="c", latency_ms=value * 1.2)
        if place >= 15:
            made.result(environment="b", latency_ms=value * 3)
    found = made.judge("latency_ms")
    assert found.changes == []
    places = [track.place for track in found.tracks]
    assert sorted(places) == ["NVIDIA A100", GPU, f"{GPU} (interpreter /b/python)"]


def test_two_similar_hosts_are_one_series():
    """The result that is ok counts, and that of most trials."""
    made = Made()
    made.environment("b", driver_version="580")
    for value in noisy(20):
        made.sweep().result(latency_ms=value)
        made.result(environment="b", latency_ms=value * 2, trials=1)
    made.sweep().result(latency_ms=1.0).result(environment="b", status="error", trials=9)
    assert made.judge("latency_ms").states == {"steady": 1}


def test_what_coincides():
    made = Made()
    made.environment("b", torch_version="2.13", flags={"TORCH_X": "1"})
    for place, value in enumerate(STEP):
        environment, rounds, host = ("b", 3, "two") if place >= 15 else ("a", 5, "one")
        made.sweep(protocol={"rounds": rounds}, host={"hostname": host})
        made.result(environment=environment, latency_ms=value)
    assert made.judge().changes[0].coincides == (
        "torch 2.11 -> 2.13",
        "TORCH_X none -> 1",
        "protocol rounds 5 -> 3",
        "host one -> two",
    )


def test_counters():
    made = series(kernels=[12] * 5 + [11] * 5, graph_breaks=[0] * 7 + [2] * 3)
    breaks, kernels = made.judge().changes
    assert (breaks.metric, breaks.old, breaks.new, breaks.ratio) == ("graph_breaks", 0, 2, None)
    assert (breaks.word, breaks.state, breaks.after.at) == ("more", "open", 7)
    assert kernels.state == "holds"
    assert kernels.ratio.value == pytest.approx(11 / 12)


def test_a_cell_that_does_not_run_as_its_mode_promises_has_counts():
    made = series(status=["degraded"] * 4, graph_breaks=[0, 0, 2, 2], latency_ms=[1.0] * 4)
    assert [change.metric for change in made.judge().changes] == ["graph_breaks"]


@pytest.mark.parametrize(
    ("metric", "before", "after", "changes"),
    [
        ("compile_cold_s", 4.0, 6.0, 1),
        ("compile_cold_s", 10.0, 12.0, 0),
        ("rel_error", 1e-5, 1e-2, 1),
        ("rel_error", 0.0, 5e-5, 0),
    ],
)
def test_the_limits_of_checks_apply(metric, before, after, changes):
    figures = noisy(10, before) + noisy(10, after, seed=1)
    assert len(series(**{metric: figures}).judge(metric).changes) == changes


IGNORED = {
    "model": "m*",
    "metric": "latency_ms",
    "hardware": GPU,
    "ignore": True,
}


@pytest.mark.parametrize(
    ("rules", "changes"),
    [
        ([IGNORED], 0),
        ([IGNORED, {"bs": 1, "floor": 0.05}], 1),
        ([{"bs": 1, "floor": 0.5}], 0),
    ],
)
def test_exceptions_apply(rules, changes):
    made = latencies(STEP)
    made.environment(flags={"interpreter": "/a"})
    limits = limits_of({"exceptions": [{**rule, "reason": "shared runner"} for rule in rules]})
    assert len(made.judge("latency_ms", limits=limits).changes) == changes


@pytest.mark.parametrize(
    ("before", "after", "word", "ratio"), [(0.0, 1e-3, "more", None), (1e-3, 0.0, "less", 0.0)]
)
def test_figures_of_0(before, after, word, ratio):
    (change,) = series(rel_error=[before] * 6 + [after] * 6).judge("rel_error").changes
    assert change.word == word
    assert (change.old, change.new) == pytest.approx((before, after))
    assert (change.ratio and change.ratio.value) == ratio


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("ok ok degraded", [("broken", 2, "open")]),
        ("ok error oom ok ok", [("fixed", 3, "holds"), ("broken", 1, "past")]),
        ("error error ok error ok", [("fixed", 2, "holds")]),
        ("ok error ok error error", [("broken", 3, "open")]),
        (
            "ok error error ok ok error",
            [("broken", 5, "open"), ("fixed", 3, "past"), ("broken", 1, "past")],
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
    assert [(change.word, change.after.at, change.state) for change in found] == expected
    assert all(change.reason.startswith("why ") for change in found)


@pytest.mark.parametrize(("period", "states"), [(5, ["open", *["past"] * 6]), (1, [])])
def test_a_series_that_switches_between_two_levels(period, states):
    """A pull request's sweeps among those of the main branch: each switch that lasts counts."""
    values = np.array(noisy(40))
    values[np.arange(40) // period % 2 == 1] *= 1.2
    found = latencies(values.tolist()).judge("latency_ms")
    assert [change.state for change in found.changes] == states

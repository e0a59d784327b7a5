"""Series, states, events and coincidences from rows of results, without a database."""

import math

import numpy as np
import pytest
from made_history import GPU, STEP, Made, ack, latencies, noisy, series

from effbench.comparison.history import SeriesId, place_of
from effbench.comparison.limits import STATUS, limits_of
from effbench.environments import changes_between
from effbench.stats.changepoints import find_all


def test_slower_faster_undone_unconfirmed():
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
    (event,) = latencies(noisy(15) + noisy(15, 0.9, seed=1)).judge().changes
    assert (event.worse, event.state, event.word) == (False, "holds", "faster")
    second, first = (
        latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.0, 2))
        .judge(acknowledged=[ack("s010")])
        .changes
    )
    assert first.undone_sweep == second.after_sweep == "s020" and first.state == "undone"
    assert second.undone_sweep is None
    (event,) = latencies([*noisy(20), 1.3]).judge().changes
    assert (event.kind, event.after_sweep, event.state, event.low) == (
        "recent",
        "s020",
        "unconfirmed",
        None,
    )


def test_a_smaller_speedup_is_slower():
    made = series(speedup=[2 / value for value in STEP], period_speedup=STEP)
    found = made.judge("speedup", "period_speedup").changes
    assert {(event.word, event.worse) for event in found} == {("slower", True), ("faster", False)}


def test_what_counts_as_not_measured():
    thirds = [
        value if place % 3 else None for place, value in enumerate(noisy(20) + noisy(20, 1.1, 1))
    ]
    gap = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
    for values, expected in ((thirds, ("s019", "s020")), (gap, ("s009", "s020"))):
        (event,) = latencies(values).judge().changes
        assert (event.before_sweep, event.after_sweep) == expected
    for bad in (math.nan, math.inf, -1.0, 0.0):
        values = noisy(10) + noisy(10, 1.1, 1)
        values[3] = values[14] = bad
        assert [event.after_sweep for event in latencies(values).judge("latency_ms").changes] == [
            "s010"
        ]
    made = latencies(noisy(20))
    for status in ("degraded", "error"):
        made.sweep().result(latency_ms=5.0, status=status)
    assert "latency_ms" not in {event.series.metric for event in made.judge().changes}


def test_sweeps_with_wide_intervals_count_less():
    for bounds, changes in (
        ((-0.01, 0.01), 2),
        ((-0.5, 0.5), 0),
        ((None, 0.5), 2),
        (("x", 0.5), 2),
    ):
        made = Made()
        for place in range(20):
            high = 10 <= place < 14
            value = 1.05 if high else 1.0
            low, top = (
                b if isinstance(b, str | None) else value * math.exp(b if high else b / 50)
                for b in bounds
            )
            made.sweep().result(latency_ms=value, latency_ci_low_ms=low, latency_ci_high_ms=top)
        assert len(made.judge("latency_ms").changes) == changes, bounds


def test_where_a_change_may_lie():
    logs = np.random.default_rng(20).normal(0, 0.03, 50) + 0.1 * (np.arange(50) >= 25)
    (event,) = latencies(np.exp(logs).tolist()).judge("latency_ms").changes
    (change,) = find_all([logs.tolist()])[0].changes
    assert change.earliest < change.at < change.latest
    places = (event.earliest_sweep, event.after_sweep, event.latest_sweep)
    assert places == tuple(f"s{place:03}" for place in (change.earliest, change.at, change.latest))
    held = [
        latencies(np.exp(logs).tolist()).judge(acknowledged=[ack(f"s{n:03}")]).changes[0].state
        for n in range(21, 30)
    ]
    # an acknowledgement holds within one sweep of these
    assert held == ["open", *["acknowledged"] * 7, "open"]


def test_the_worst_open_change_comes_first_and_a_change_for_the_better_last():
    made = Made()
    for place in range(30):
        made.sweep().result(
            "a", latency_ms=1.1 if place >= 10 else 1.0, period_ms=0.5 if place >= 10 else 1.0
        )
        made.result("b", latency_ms=1.3 if place >= 8 else 1.0).result(
            "c", latency_ms=0.2 if place >= 20 else 1.0
        )
    found = made.judge("latency_ms", "period_ms").changes
    assert [(event.series.cell_key, event.word) for event in found] == [
        ("b", "slower"),
        ("a", "slower"),
        ("a", "faster"),
        ("c", "faster"),
    ]


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
    assert place_of({"gpu_name": None, "cpu_name": "Xeon", "flags": None}) == "Xeon"
    assert (
        place_of({"gpu_name": None, "cpu_name": "Xeon", "flags": {"folder": "/x"}})
        == "Xeon (folder /x)"
    )
    # two similar hosts are one series
    made = Made()
    made.environment("b", driver_version="580")
    for value in noisy(20):
        made.sweep().result(latency_ms=value).result(
            environment="b", latency_ms=value * 2, trials=1
        )
    found = made.judge("latency_ms")
    assert found.changes == [] and set(found.states.values()) == {"steady"}
    made.sweep().result(latency_ms=1.0).result(environment="b", status="error", trials=9)
    ((*rows,),) = (track.points for track in made.judge().tracks)
    assert {row.environment_id for row in rows} == {"a"}, (
        "the result that is ok, and that of most trials"
    )


def test_what_coincides():
    made = Made()
    made.environment("b", torch_version="2.13", driver_version="580", flags={"TORCH_X": "1"})
    made.environment("c", flags={"interpreter": "/x", "folder": "/y"})
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
    sweep = made.sweeps[0]
    assert changes_between((sweep, made.environments["a"]), (sweep, made.environments["c"])) == []
    made = latencies(STEP)
    made.environment("b", torch_version="2.13")
    made.rows[16:] = [(*row[:2], "b", *row[3:]) for row in made.rows[16:]]
    assert made.judge().changes[0].coincides == (), "it came a sweep later"


def test_of_a_resumed_sweep_the_last_environment_counts():
    for order in (("x", "y"), ("y", "x")):
        made = Made()
        for key in order:
            made.environment(key)
        made.sweep(host={"environments": dict.fromkeys(order)})
        for key in "xy":
            made.result(environment=key, latency_ms=1.0)
        ((row,),) = (track.points for track in made.judge().tracks)
        assert row.environment_id == order[-1]


def test_counters_and_compile_seconds():
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
    for metric, before, after, expected in (
        ("compile_cold_s", 4.0, 6.0, [("s010", True)]),
        ("compile_cold_s", 10.0, 12.0, []),
        ("compile_cold_s", 1.0, 1.9, []),
        # errors have no seconds: they count from the limits of conf/check on
        ("rel_error", 1e-5, 1e-2, [("s010", True)]),
        ("rel_error", 1e-6, 5e-5, []),
        ("rel_error", 0.01, 0.03, []),
    ):
        levels = [before] * 10 + [after] * 10
        made = series(
            **{metric: [level * value for level, value in zip(levels, noisy(20), strict=True)]}
        )
        assert [
            (event.after_sweep, event.worse) for event in made.judge(metric).changes
        ] == expected
    for metric, before, after, word in (
        ("rel_error", 0.0, 1e-3, "more"),
        ("rel_error", 1e-3, 0.0, "less"),
        ("graph_pool_bytes", 0, 2**24, "more"),
    ):
        (change,) = series(**{metric: [before] * 6 + [after] * 6}).judge(metric).changes
        assert (change.word, change.old, change.new) == (
            word,
            pytest.approx(before),
            pytest.approx(after),
        ), metric
        assert change.ratio == (0.0 if before else None), metric
    for close in ([0.0] * 6 + [5e-5] * 6, [0.0, 1e-8] * 6):
        assert series(rel_error=close).judge("rel_error").changes == []
    (change,) = series(rel_error=[0.0, 1e-8] * 6 + [1e-3] * 6).judge("rel_error").changes
    assert (change.after_sweep, change.old < 1e-7, change.new) == (
        "s012",
        True,
        pytest.approx(1e-3),
    )
    # a cell that does not run as its mode promises has counts, too
    made = series(status=["degraded"] * 4, graph_breaks=[0, 0, 2, 2], latency_ms=[1.0] * 4)
    assert [event.series.metric for event in made.judge().changes] == ["graph_breaks"]


def compiling(*levels):
    """A cell whose compile times are six sweeps on each of these levels."""
    return series(
        compile_cold_s=[level * (1 + 0.001 * (place % 3)) for level in levels for place in range(6)]
    )


def test_the_limits_of_a_check_apply():
    made = Made()
    for place in range(20):  # one segment of the caching allocator more
        made.sweep().result(peak_reserved_bytes=(20 + 2 * (place >= 10)) * 2**20)
    assert made.judge("peak_reserved_bytes").changes == []
    for limit, found in (({"least": 0}, 1), ({"least": 0, "floor": 0.15}, 0)):
        limits = limits_of({"limits": {"peak_reserved_bytes": limit}})
        assert len(made.judge("peak_reserved_bytes", limits=limits).changes) == found, limit


def test_small_changes_in_a_row_are_a_large_one():
    (change,) = compiling(2.0, 2.9, 3.8).judge("compile_cold_s").changes
    assert (change.after_sweep, change.alarms, change.word) == ("s012", True, "slower")
    assert (change.old, change.new, change.ratio) == pytest.approx((2.0, 3.8, 1.9), rel=0.01)


def test_other_changes_of_compile_seconds():
    for levels, expected in (
        ((3.8, 2.9, 2.0), [("s012", "holds")]),
        ((1.0, 2.5, 3.3), [("s006", "open")]),  # a small change after a large one
        ((10.0, 15.0, 11.5), [("s006", "undone"), ("s012", "holds")]),
    ):
        made = compiling(*levels)
        changes = sorted(made.judge("compile_cold_s").changes, key=lambda event: event.after_sweep)
        assert [(event.after_sweep, event.state) for event in changes] == expected, levels
    made.sweep().result(compile_cold_s=30.0)
    events = {event.kind: event for event in made.judge("compile_cold_s").changes}
    assert (events["recent"].after_sweep, events["recent"].state) == ("s018", "unconfirmed")


def test_less_than_a_second_does_not_count():
    sliding = (0.3 * np.exp(0.03 * np.arange(20))).tolist()
    switching = [0.3, 0.6] * 10
    switching[9] = 7.0  # one slow compilation
    for values in (sliding, switching):
        assert series(compile_cold_s=values).judge("compile_cold_s").changes == []


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("ok ok degraded", [("broken", "s002", None)]),
        ("ok error oom ok ok", [("fixed", "s003", None), ("broken", "s001", "s003")]),
        ("error error ok ok", [("fixed", "s002", None)]),
        ("error ok ok", []),
        ("error error ok error ok", [("fixed", "s002", None)]),
        ("ok error ok error error", [("broken", "s003", None)]),
        (
            "ok error error ok ok error",
            [("broken", "s005", None), ("fixed", "s003", "s005"), ("broken", "s001", "s003")],
        ),
        ("ok crashed ok ok", []),  # over at once
        ("ok error ok error ok error ok crashed", [("broken", "s007", None)]),
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
        assert event.worse is (event.kind == "broken")


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


def test_a_series_that_switches_between_two_levels_has_changes_that_are_undone():
    """A pull request's sweeps among those of the main branch: each switch that lasts counts."""
    values = noisy(40)
    made = latencies([value * (1.2 if place // 5 % 2 else 1) for place, value in enumerate(values)])
    states = [event.state for event in made.judge("latency_ms").changes]
    assert states == ["open", *["undone"] * 6]
    made = latencies([value * (1.2 if place % 2 else 1) for place, value in enumerate(values)])
    assert made.judge("latency_ms").changes == []

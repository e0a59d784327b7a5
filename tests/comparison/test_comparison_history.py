"""Series, states, events, coincidences and acknowledgements from rows of results, without a database."""

import datetime as dt
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from effbench.comparison.events import SeriesId, event_id, place_of
from effbench.comparison.history import DEFAULT_METRICS, columns_of, history
from effbench.comparison.limits import limits_of
from effbench.comparison.verdicts import STATUS
from effbench.environments import changes_between
from effbench.stats.changepoints import find_all
from effbench.store.sides import Series

GPU = "NVIDIA H200"
JUDGED = (*DEFAULT_METRICS, "rel_error", "speedup", "period_speedup")
COLUMNS = ("sweep_id", "cell_key", "environment_id", "status", "reason", *dict.fromkeys(columns_of(JUDGED)))


class Made:
    """A history in the making: sweeps, environments and rows are added one by one."""

    def __init__(self):
        self.sweeps, self.environments, self.cells, self.rows = [], {}, {}, []
        self.environment()

    def environment(self, key="a", **changed):
        facts = {"gpu_name": GPU, "cpu_name": "Xeon", "driver_version": "570", "torch_version": "2.11", "flags": {}}
        self.environments[key] = {"id": key, **facts, **changed}

    def sweep(self, **changed):
        number = len(self.sweeps)
        facts = {"id": f"s{number:03}", "name": None, "label": f"v{number}", "protocol": {"rounds": 5}, "host": {}}
        at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(number)
        self.sweeps.append({**facts, "started_at": at, **changed})
        return self

    def result(self, cell="c", environment="a", status="ok", model="mlp", **values):
        """A result in the newest sweep."""
        self.cells.setdefault(cell, {"key": cell, "model": model, "bs": 1, "mode": "eager"})
        row = {"sweep_id": self.sweeps[-1]["id"], "cell_key": cell, "environment_id": environment, "status": status,
               "trials": 5, **values}  # fmt: skip
        self.rows.append(tuple(row.get(name) for name in COLUMNS))
        return self

    def judge(self, *metrics, acknowledged=(), exceptions=()):
        measured = [(row[0], row[2], self.cells[row[1]]["model"]) for row in self.rows]
        series = Series(self.sweeps, self.environments, self.cells, COLUMNS, self.rows, measured)
        return history(series, metrics or DEFAULT_METRICS, acknowledged, exceptions)


def latencies(values, **more):
    """A cell with these latencies, one a sweep; None: no result there."""
    made = Made()
    for value in values:
        made.sweep()
        if value is not None:
            made.result(latency_ms=value, **more)
    return made


def noisy(count, level=1.0, seed=0):
    return list(level * np.exp(np.random.default_rng(seed).normal(0, 0.005, count)))


STEP = noisy(15) + noisy(15, 1.1, seed=1)


def test_slower_faster_undone_unconfirmed():
    found = latencies(STEP).judge()
    (event,) = found.events
    assert (event.before_sweep, event.after_sweep, event.kind, event.word) == ("s014", "s015", "change", "slower")
    assert event.worse and event.alarms and event.undone_sweep is None
    assert event.old == pytest.approx(1.0, rel=0.01) and event.new == pytest.approx(1.1, rel=0.01)
    assert event.low < 1.1 < event.high
    assert found.states == {SeriesId("c", GPU, "latency_ms"): "changed"}
    (event,) = latencies(noisy(15) + noisy(15, 0.9, seed=1)).judge().events
    assert (event.worse, event.state, event.word) == (False, "holds", "faster")
    second, first = (
        latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.0, 2)).judge(acknowledged=[ack("s010")]).events
    )
    assert first.undone_sweep == second.after_sweep == "s020" and first.state == "undone"
    assert second.undoes == first.id and second.undone_sweep is None
    (event,) = latencies([*noisy(20), 1.3]).judge().events
    assert (event.kind, event.after_sweep, event.state, event.low) == ("recent", "s020", "unconfirmed", None)


def test_a_smaller_speedup_is_slower():
    made = Made()
    for value in STEP:
        made.sweep().result(speedup=2 / value, period_speedup=value)
    found = made.judge("speedup", "period_speedup").changes
    assert {(event.word, event.worse) for event in found} == {("slower", True), ("faster", False)}


def test_what_counts_as_not_measured():
    thirds = [value if place % 3 else None for place, value in enumerate(noisy(20) + noisy(20, 1.1, 1))]
    gap = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
    for values, expected in ((thirds, ("s019", "s020")), (gap, ("s009", "s020"))):
        (event,) = latencies(values).judge().events
        assert (event.before_sweep, event.after_sweep) == expected
    for bad in (math.nan, math.inf, -1.0, 0.0):
        values = noisy(10) + noisy(10, 1.1, 1)
        values[3] = values[14] = bad
        assert [event.after_sweep for event in latencies(values).judge("latency_ms").events] == ["s010"]
    made = latencies(noisy(20))
    for status in ("noisy", "degraded", "error"):
        made.sweep().result(latency_ms=5.0, status=status)
    assert "latency_ms" not in {event.series.metric for event in made.judge().events}


def test_sweeps_with_wide_intervals_count_less():
    for bounds, changes in (((-0.01, 0.01), 2), ((-0.5, 0.5), 0), ((None, 0.5), 2), (("x", 0.5), 2)):
        made = Made()
        for place in range(20):
            high = 10 <= place < 14
            value = 1.05 if high else 1.0
            low, top = (b if isinstance(b, str | None) else value * math.exp(b if high else b / 50) for b in bounds)
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
        latencies(np.exp(logs).tolist()).judge(acknowledged=[ack(f"s{n:03}")]).events[0].state for n in range(21, 30)
    ]
    assert held == ["open", *["acknowledged"] * 7, "open"]  # an acknowledgement holds within one sweep of these


def test_the_worst_open_change_comes_first_and_a_change_for_the_better_last():
    made = Made()
    for place in range(30):
        made.sweep().result("a", latency_ms=1.1 if place >= 10 else 1.0, period_ms=0.5 if place >= 10 else 1.0)
        made.result("b", latency_ms=1.3 if place >= 8 else 1.0).result("c", latency_ms=0.2 if place >= 20 else 1.0)
    found = made.judge("latency_ms", "period_ms").changes
    assert [(event.series.cell_key, event.word) for event in found] == [
        ("b", "slower"), ("a", "slower"), ("a", "faster"), ("c", "faster"),
    ]  # fmt: skip


def test_short_ids_are_unique():
    found = latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.3, 2)).judge()
    found.events = [replace(event, id=f"aaaaaaa{number}bb") for number, event in enumerate(found.events)]
    assert [found.short_id(event.id) for event in found.events] == ["aaaaaaa0", "aaaaaaa1"]


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
    assert (found.changes, {key.place for key in found.states}, found.of("new")) == ([], places, [])
    assert place_of({"gpu_name": None, "cpu_name": "Xeon", "flags": None}) == "Xeon"
    assert place_of({"gpu_name": None, "cpu_name": "Xeon", "flags": {"folder": "/x"}}) == "Xeon (folder /x)"
    # two similar hosts are one series
    made = Made()
    made.environment("b", driver_version="580")
    for value in noisy(20):
        made.sweep().result(latency_ms=value).result(environment="b", latency_ms=value * 2, trials=1)
    found = made.judge("latency_ms")
    assert found.events == [] and set(found.states.values()) == {"steady"}
    made.sweep().result(latency_ms=1.0).result(environment="b", status="error", trials=9)
    ((*rows,),) = (track.rows for track in made.judge().tracks)
    assert {row.environment_id for row in rows} == {"a"}, "the result that is ok, and that of most trials"


def test_what_coincides():
    made = Made()
    made.environment("b", torch_version="2.13", driver_version="580", flags={"TORCH_X": "1"})
    made.environment("c", flags={"interpreter": "/x", "folder": "/y"})
    for place, value in enumerate(STEP):
        environment, rounds, host = ("b", 3, "two") if place >= 15 else ("a", 5, "one")
        made.sweep(protocol={"rounds": rounds}, host={"hostname": host})
        made.result(environment=environment, latency_ms=value)
    assert made.judge().events[0].coincides == (
        "torch 2.11 -> 2.13", "driver 570 -> 580", "TORCH_X none -> 1", "protocol rounds 5 -> 3", "host one -> two",
    )  # fmt: skip
    sweep = made.sweeps[0]
    assert changes_between((sweep, made.environments["a"]), (sweep, made.environments["c"])) == []
    made = latencies(STEP)
    made.environment("b", torch_version="2.13")
    made.rows[16:] = [(*row[:2], "b", *row[3:]) for row in made.rows[16:]]
    assert made.judge().events[0].coincides == (), "it came a sweep later"


def test_of_a_resumed_sweep_the_last_environment_counts():
    for order in (("x", "y"), ("y", "x")):
        made = Made()
        for key in order:
            made.environment(key)
        made.sweep(host={"environments": dict.fromkeys(order)})
        for key in "xy":
            made.result(environment=key, latency_ms=1.0)
        ((row,),) = (track.rows for track in made.judge().tracks)
        assert row.environment_id == order[-1]


IGNORED = {"model": "m*", "ignore": True, "reason": "shared runner"}


def test_counters_and_compile_seconds():
    made = Made()
    for place in range(10):
        made.sweep().result(kernels=12 if place < 5 else 11, graph_breaks=0 if place < 7 else 2, recompiles=0)
    breaks, kernels = made.judge().events
    assert (breaks.series.metric, breaks.old, breaks.new, breaks.ratio) == ("graph_breaks", 0, 2, None)
    assert breaks.worse and breaks.after_sweep == "s007" and breaks.word == "more"
    assert kernels.worse is False and kernels.ratio == pytest.approx(11 / 12)
    for before, after, expected in ((4.0, 6.0, [("s010", True)]), (10.0, 12.0, []), (1.0, 1.9, [])):
        made = Made()
        for place, value in enumerate(noisy(20)):
            made.sweep().result(compile_cold_s=(before if place < 10 else after) * value)
        changes = made.judge("compile_cold_s").changes
        assert [(event.after_sweep, event.worse) for event in changes] == expected
    made = Made()
    for place in range(13):  # twelve kernels on host a, eleven on host b, and an odd sweep
        made.sweep(host={"hostname": "ab"[place % 2]}).result(kernels=9 if place == 4 else 12 - place % 2)
    (event,) = made.judge("kernels", exceptions=limits_of({"exceptions": [IGNORED]}).exceptions).of("flapping")
    assert (event.coincides, event.acknowledged) == (("host b | a",), None)  # only changes are acknowledged
    made = Made()
    for place in range(4):  # a cell that does not run as its mode promises has counts, too
        made.sweep().result(status="degraded", graph_breaks=place // 2 * 2, latency_ms=1.0)
    assert [event.series.metric for event in made.judge().changes] == ["graph_breaks"]
    # errors have no seconds: they count from the limits of conf/check on
    for before, after, expected in ((1e-5, 1e-2, [("s010", True)]), (1e-6, 5e-5, []), (0.01, 0.03, [])):
        made = Made()
        for place, value in enumerate(noisy(20)):
            made.sweep().result(rel_error=(before if place < 10 else after) * value)
        changes = made.judge("rel_error").changes
        assert [(event.after_sweep, event.worse) for event in changes] == expected


def test_small_changes_in_a_row_are_a_large_one():
    made = Made()
    for place in range(18):
        made.sweep().result(compile_cold_s=(2.0, 2.9, 3.8)[place // 6] * (1 + 0.001 * (place % 3)))
    (change,) = made.judge("compile_cold_s").changes
    assert (change.after_sweep, change.alarms, change.word) == ("s012", True, "slower")
    assert (change.old, change.new, change.ratio) == pytest.approx((2.0, 3.8, 1.9), rel=0.01)


def test_other_changes_of_compile_seconds():
    for levels, expected in (
        ((3.8, 2.9, 2.0), [("s012", "holds")]),
        ((1.0, 2.5, 3.3), [("s006", "open")]),  # a small change after a large one
        ((10.0, 15.0, 11.5), [("s006", "undone"), ("s012", "holds")]),
    ):
        made = Made()
        for place in range(18):
            made.sweep().result(compile_cold_s=levels[place // 6] * (1 + 0.001 * (place % 3)))
        changes = sorted(made.judge("compile_cold_s").changes, key=lambda event: event.after_sweep)
        assert [(event.after_sweep, event.state) for event in changes] == expected, levels
    for level, kinds in ((0.3, []), (2.0, ["flapping", "drifting"])):  # less than a second does not count
        found = []
        for values in ([1 + place % 2 for place in range(20)], np.exp(0.03 * np.arange(20)).tolist()):
            small = Made()
            for place, value in enumerate(values):
                small.sweep().result(compile_cold_s=7.0 if (level, place) == (0.3, 9) and value == 2 else level * value)
            found += small.judge("compile_cold_s").events
        assert [event.kind for event in found] == kinds
    made.sweep().result(compile_cold_s=30.0)
    (event,) = made.judge("compile_cold_s").of("recent")
    assert (event.after_sweep, event.state) == ("s018", "unconfirmed")


def test_statuses():
    for statuses, expected in (
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
        ("ok noisy noisy ok", []),
        ("ok error ok error ok error ok crashed", []),
    ):
        made = Made()
        for status in statuses.split():
            made.sweep().result(status=status, reason=None if status == "ok" else f"why {status}", latency_ms=1.0)
        found = made.judge("latency_ms")
        assert [(one.kind, one.after_sweep, one.undone_sweep) for one in found.changes] == expected, statuses
        for event in found.changes:
            assert event.series == SeriesId("c", GPU, STATUS) and event.reason.startswith("why ")
            assert event.worse is (event.kind == "broken")
            undone = [one.id for one in found.changes if one.undone_sweep == event.after_sweep]
            assert [event.undoes] == (undone or [None])
    (one,) = found.of("flapping")
    assert (one.series.metric, one.old, one.new, one.switches) == (STATUS, "ok", "crashed", 7)


def test_states():
    made = Made()
    for place, value in enumerate(noisy(40)):
        made.sweep().result("steady", latency_ms=value)
        made.result("drifting", latency_ms=value * math.exp(0.1 * place / 40))
        made.result("flapping", latency_ms=value * (1.2 if place % 4 < 2 else 1))
        if place >= 36:
            made.result("short", latency_ms=value)
    found = made.judge("latency_ms")
    kernels = Made()
    for _ in range(4):
        kernels.sweep().result(latency_ms=1.0, kernels=3)
    assert {key.metric: state for key, state in kernels.judge().states.items()} == {
        "latency_ms": "short", "kernels": "steady",
    }  # fmt: skip
    assert len(found.states) == 4 and all(key.cell_key == state for key, state in found.states.items())
    assert found.changes == []
    assert found.of("drifting")[0].ratio == pytest.approx(math.exp(0.1), rel=0.02)
    (one,) = found.of("flapping")
    assert (one.old, one.new, one.after_sweep) == (pytest.approx(1, rel=0.01), pytest.approx(1.2, rel=0.01), "s038")


def test_new_and_dead():
    made = Made()
    for place in range(10):
        made.sweep().result("always", latency_ms=1.0)
        if place >= 8:
            made.result("new", latency_ms=1.0).result("new model", model="later", latency_ms=1.0)
        if place < 6:
            made.result("dead", latency_ms=1.0)
        if place < 8:
            made.result("absent twice", latency_ms=1.0)
        if place < 5:
            made.result("other", model="other", latency_ms=1.0)
        if place == 4:
            made.result("new other", model="other", latency_ms=1.0)
    found = made.judge()
    new = [(one.series.cell_key, one.after_sweep) for one in found.of("new")]
    assert new == [("new", "s008"), ("new model", "s008"), ("new other", "s004")]
    # `other`: its model was not measured since, so nothing says that it is gone
    assert [(one.series.cell_key, one.before_sweep) for one in found.of("dead")] == [("dead", "s005")]


def ack(sweep_id, metric="latency_ms", place=GPU, cell="c", id=7):
    return {"id": id, "cell_key": cell, "hardware": place, "metric": metric, "sweep_id": sweep_id, "reason": "known"}


def test_an_acknowledgement_holds_within_one_sweep():
    made = latencies(STEP)
    for sweep_id, held in (("s013", False), ("s014", True), ("s015", True), ("s016", True), ("s017", False)):
        (event,) = made.judge(acknowledged=[ack(sweep_id)]).events
        assert (event.acknowledged == "known") is held and event.alarms is not held
        # the id is that under which it was acknowledged
        assert event.id == event_id(event.series, sweep_id if held else "s015")
    for other in ({"metric": "period_ms"}, {"place": "other"}, {"cell": "other"}):
        assert made.judge(acknowledged=[ack("s015", **other)]).events[0].acknowledged is None
    values = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
    assert latencies(values).judge(acknowledged=[ack("s009")]).events[0].acknowledged == "known"


def test_each_holds_for_one_change():
    """The nearest: the next change of the series alarms again, even close by."""
    made = latencies(noisy(10) + noisy(3, 1.1, 1) + noisy(10, 1.3, 2))
    for rows, held in (
        ([ack("s011")], (7, None)),
        ([ack("s013")], (None, 7)),
        ([ack("s010"), ack("s014", id=8)], (7, 8)),
    ):
        first, second = sorted(made.judge(acknowledged=rows).events, key=lambda event: event.after_sweep)
        assert (first.after_sweep, second.after_sweep) == ("s010", "s013")
        assert (first.acknowledgement, second.acknowledgement) == held
        assert (first.alarms, second.alarms) == tuple(one is None for one in held)
    for rows in itertools.permutations([ack("s014", id=8), ack("s015"), ack("s016", id=9)]):  # of several, the nearest
        assert latencies(STEP).judge(acknowledged=rows).events[0].acknowledgement == 7


def test_a_change_is_acknowledged_if_the_last_exception_that_matches_ignores_it():
    made = Made()
    made.environment(flags={"interpreter": "/a"})
    for value in STEP:
        made.sweep().result(latency_ms=value)
    ignored = {"model": "m*", "metric": "latency_ms", "hardware": GPU, "ignore": True}
    for rules, held in (
        ([ignored], True),
        ([{"metric": "period_ms", "ignore": True}], False),
        ([{"model": "m*", "floor": 0.5}], False),
        ([ignored, {"bs": 1, "floor": 0.5}], False),
        ([{"bs": 1, "floor": 0.5}, ignored, {"bs": 8, "floor": 0.5}], True),
    ):
        rules = limits_of({"exceptions": [{**rule, "reason": "shared runner"} for rule in rules]}).exceptions
        (event,) = made.judge(exceptions=rules).events
        assert (event.acknowledged == "shared runner") is held and event.alarms is not held, rules
        known = [ack("s015", place=event.series.place)]
        assert made.judge(acknowledged=known, exceptions=rules).events[0].acknowledged == "known"

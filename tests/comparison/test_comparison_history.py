"""Series, states, events and coincidences from rows of results, without a database."""

from __future__ import annotations

import math

import pytest
from made_history import GPU, Made, latencies, noisy
from XXX import Step

from effbench.analysis.environments import changes_between
from effbench.comparison.events import SeriesId
from effbench.comparison.history import DEFAULT_METRICS, judgeable, place_of
from effbench.comparison.verdicts import STATUS
from effbench.stats.changepoints import find_exact


class TestChanges:
    def test_a_slowdown(self):
        found = latencies(noisy(15) + noisy(15, 1.1, seed=1)).judge()
        (event,) = found.events
        assert (event.before, event.after, event.kind) == ("s014", "s015", "change")
        assert event.worse and event.alarms and event.undone is None
        assert event.old == pytest.approx(1.0, rel=0.01) and event.new == pytest.approx(1.1, rel=0.01)
        assert event.low < 1.1 < event.high
        assert found.states == {SeriesId("c", GPU, "latency_ms"): "changed"}

    def test_a_speedup_does_not_alarm(self):
        (event,) = latencies(noisy(15) + noisy(15, 0.9, seed=1)).judge().events
        assert event.worse is False and not event.alarms

    def test_undone(self):
        second, first = latencies(noisy(10) + noisy(10, 1.1, 1) + noisy(10, 1.0, 2)).judge().events
        assert first.undone == second.after == "s020" and not first.alarms
        assert second.undoes == first.id and second.undone is None

    def test_sweeps_without_the_cell(self):
        values = [value if place % 3 else None for place, value in enumerate(noisy(20) + noisy(20, 1.1, 1))]
        (event,) = latencies(values).judge().events
        assert (event.before, event.after) == ("s019", "s020")

    def test_nothing_measured_in_between(self):
        values = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
        (event,) = latencies(values).judge().events
        assert (event.before, event.after) == ("s009", "s020")

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, None])
    def test_what_is_no_figure_counts_as_not_measured(self, bad):
        values = noisy(10) + noisy(10, 1.1, 1)
        made = Made()
        for place, value in enumerate(values):
            made.sweep().result(latency_ms=bad if place in (3, 14) else value)
        (event,) = made.judge("latency_ms").events
        assert event.after == "s010"

    def test_only_ok_results_count(self):
        made = Made()
        for value in noisy(20):
            made.sweep().result(latency_ms=value)
        for status in ("noisy", "degraded", "error"):
            made.sweep().result(latency_ms=5.0, status=status)
        assert "latency_ms" not in {event.series.metric for event in made.judge().events}

    def test_recent(self):
        (event,) = latencies([*noisy(20), 1.3]).judge().events
        assert (event.kind, event.after) == ("recent", "s020")
        assert not event.alarms and event.low is None

    def test_a_sweep_of_scattered_trials_counts_less(self):
        def judged(high):
            made = Made()
            for place, value in enumerate(noisy(20)):
                poor = 10 <= place < 14
                made.sweep().result(
                    latency_ms=value * (1.05 if poor else 1), latency_ci_low_ms=value / (high if poor else 1.005),
                    latency_ci_high_ms=value * (high if poor else 1.005),
                )  # fmt: skip
            return made.judge("latency_ms").events

        assert len(judged(1.005)) == 2 and judged(2.0) == []

    def test_newest_and_worst_first(self):
        made = Made()
        for place in range(40):
            made.sweep()
            for cell, at, factor in (("old", 10, 2.0), ("mild", 20, 1.1), ("bad", 20, 1.5), ("good", 20, 0.5)):
                made.result(cell, latency_ms=noisy(40)[place] * (factor if place >= at else 1))
        assert [event.series.cell_key for event in made.judge().events] == ["bad", "mild", "good", "old"]


class TestPlaces:
    def test_another_machine_is_another_series(self):
        made = Made()
        made.environment("b", gpu_name="NVIDIA A100")
        for place, value in enumerate(noisy(30)):
            made.sweep().result(latency_ms=value)
            if place >= 15:
                made.result(environment="b", latency_ms=value * 3)
        found = made.judge()
        assert found.events == []
        assert {key.place for key in found.states} == {GPU, "NVIDIA A100"}
        assert [(one.place, one.sweep) for one in found.new] == []

    def test_interpreters_of_one_sweep(self):
        made = Made()
        made.environment("b", flags={"interpreter": "/b/python"}, torch_version="2.13")
        for value in noisy(20):
            made.sweep().result(latency_ms=value).result(environment="b", latency_ms=value * 1.2)
        found = made.judge("latency_ms")
        assert found.events == [] and len(found.states) == 2
        assert place_of(made.environments["b"]) == f"{GPU} (interpreter /b/python)"

    def test_two_hosts_alike_are_one_series(self):
        made = Made()
        made.environment("b", driver_version="580")
        for value in noisy(20):
            made.sweep().result(latency_ms=value).result(environment="b", latency_ms=value * 2, trials=1)
        found = made.judge("latency_ms")
        assert found.events == [] and set(found.states.values()) == {"steady"}

    def test_without_a_gpu_it_is_the_cpu(self):
        assert place_of({"gpu_name": None, "cpu_name": "Xeon", "flags": None}) == "Xeon"


class TestCoincidence:
    def test_software_protocol_and_host(self):
        made = Made()
        made.environment("b", torch_version="2.13", driver_version="580", flags={"TORCH_X": "1"})
        for place, value in enumerate(noisy(15) + noisy(15, 1.1, 1)):
            late = place >= 15
            made.sweep(
                protocol={"name": "standard", "rounds": 3 if late else 5}, host={"hostname": "two" if late else "one"}
            )
            made.result(environment="b" if late else "a", latency_ms=value)
        (event,) = made.judge().events
        assert event.with_ == (
            "torch 2.11 -> 2.13", "driver 570 -> 580", "TORCH_X none -> 1", "protocol rounds 5 -> 3", "host one -> two",
        )  # fmt: skip

    def test_one_that_came_a_sweep_later_does_not_coincide(self):
        made = Made()
        made.environment("b", torch_version="2.13")
        for place, value in enumerate(noisy(15) + noisy(15, 1.1, 1)):
            made.sweep().result(environment="b" if place >= 16 else "a", latency_ms=value)
        assert made.judge().events[0].with_ == ()

    def test_what_is_compared_within_a_sweep_is_none(self):
        made = Made()
        made.environment("b", flags={"interpreter": "/x", "folder": "/y"})
        sweep = made.sweep().sweeps[0]
        assert changes_between(sweep, sweep, made.environments["a"], made.environments["b"]) == []


class TestExact:
    def test_every_lasting_change(self):
        assert find_exact([3, 3, 3, 4, 4, 4]).changes == (Step(3, 3, 4),)
        assert find_exact([0, 0, 5, 5, 0, 0]).changes == (Step(2, 0, 5, undone_at=4), Step(4, 5, 0, undoes=2))

    def test_what_does_not_last(self):
        assert find_exact([3, 3, 9, 3, 3]).changes == ()
        assert find_exact([3, 3, 9, 4, 4]).changes == (Step(3, 3, 4),)
        assert find_exact([9, 3, 3, 3]).changes == ()
        assert find_exact([3, 3, 3, 4]).recent == Step(3, 3, 4)
        assert find_exact([3, 3, 4, 3]).recent is None

    @pytest.mark.parametrize("values", [[], [1], [1, 2], [1, 1], [1, 2, 3]])
    def test_too_few(self, values):
        assert find_exact(values).changes == ()

    def test_flapping(self):
        found = find_exact([12, 13] * 5)
        assert found.alternation == (12, 13, 9, 9) and found.changes == ()

    def test_kernels_and_breaks(self):
        made = Made()
        for place in range(10):
            made.sweep().result(kernels=12 if place < 5 else 11, graph_breaks=0 if place < 7 else 2, recompiles=0)
        breaks, kernels = made.judge().events
        assert (breaks.series.metric, breaks.old, breaks.new, breaks.ratio) == ("graph_breaks", 0, 2, None)
        assert breaks.worse and breaks.after == "s007" and breaks.p_value is None
        assert kernels.worse is False and kernels.ratio == pytest.approx(11 / 12)

    def test_compile_seconds_by_their_bound(self):
        def judged(before, after):
            made = Made()
            for place in range(20):
                made.sweep().result(compile_cold_s=(before if place < 10 else after) * noisy(20)[place])
            return [(event.after, event.worse) for event in made.judge("compile_cold_s").events]

        assert judged(4.0, 6.0) == [("s010", True)]
        assert judged(10.0, 12.0) == []  # a fifth more
        assert judged(1.0, 1.9) == []  # less than a second


class TestStatuses:
    def statuses(self, *statuses):
        made = Made()
        for status in statuses:
            made.sweep().result(status=status, reason=None if status == "ok" else f"why {status}", latency_ms=1.0)
        found = made.judge("latency_ms")
        return found, [(event.kind, event.after, event.undone) for event in found.events]

    def test_broken_since(self):
        found, events = self.statuses("ok", "ok", "error", "error")
        assert events == [("broken", "s002", None)]
        (event,) = found.events
        assert (event.old, event.new, event.reason, event.alarms) == ("ok", "error", "why error", True)
        assert event.series == SeriesId("c", GPU, STATUS)

    def test_broken_in_the_newest_sweep(self):
        assert self.statuses("ok", "ok", "degraded")[1] == [("broken", "s002", None)]

    def test_broken_and_fixed(self):
        found, events = self.statuses("ok", "error", "oom", "ok", "ok")
        assert events == [("fixed", "s003", None), ("broken", "s001", "s003")]
        assert found.events[0].undoes == found.events[1].id

    def test_fixed_from_the_start(self):
        assert self.statuses("error", "error", "ok", "ok")[1] == [("fixed", "s002", None)]

    def test_never_ok_is_no_event(self):
        assert self.statuses("unsupported", "unsupported", "unsupported")[1] == []

    def test_one_failure_that_was_over_at_once(self):
        assert self.statuses("ok", "crashed", "ok", "ok")[1] == []

    def test_a_disturbed_sweep_says_nothing(self):
        assert self.statuses("ok", "noisy", "noisy", "ok")[1] == []

    def test_flapping(self):
        found, events = self.statuses(*["ok", "crashed"] * 4)
        assert events == []
        (one,) = found.flapping
        assert (one.series.metric, one.low, one.high, one.switches) == (STATUS, "ok", "crashed", 7)


class TestStates:
    def test_steady_short_drifting_and_flapping(self):
        made = Made()
        for place, value in enumerate(noisy(40)):
            made.sweep().result("steady", latency_ms=value)
            made.result("drifting", latency_ms=value * math.exp(0.1 * place / 40))
            made.result("flapping", latency_ms=value * (1.2 if place % 4 < 2 else 1))
            if place >= 36:
                made.result("short", latency_ms=value)
        found = made.judge("latency_ms")
        assert {key.cell_key: state for key, state in found.states.items()} == {
            "steady": "steady", "drifting": "drifting", "flapping": "flapping", "short": "short",
        }  # fmt: skip
        assert found.events == []
        assert found.drifting[0].ratio == pytest.approx(math.exp(0.1), rel=0.02)
        (one,) = found.flapping
        assert (one.low, one.high, one.last) == (pytest.approx(1, rel=0.01), pytest.approx(1.2, rel=0.01), "s038")

    def test_new_and_dead(self):
        made = Made()
        for place in range(10):
            made.sweep().result("always", latency_ms=1.0)
            if place >= 8:
                made.result("new", latency_ms=1.0)
            if place < 6:
                made.result("dead", latency_ms=1.0)
            if place < 5:
                made.result("other", model="other", latency_ms=1.0)
            if place >= 8:
                made.result("new model", model="later", latency_ms=1.0)
        found = made.judge()
        assert [(one.cell_key, one.sweep) for one in found.new] == [("new", "s008"), ("new model", "s008")]
        # `other`: its model was not measured since, so nothing says that it is gone
        assert [(one.cell_key, one.sweep) for one in found.dead] == [("dead", "s005")]

    def test_a_first_sweep_is_not_new(self):
        assert latencies([1.0]).judge().new == []


class TestGoesWith:
    """What the levels of a flapping series go with."""

    def flapping(self, **more):
        made = Made()
        made.environment("b", torch_version="2.13")
        for number in range(24):
            odd = number % 2 == 1
            made.sweep(**({"host": {"hostname": "other"}} if odd and more.get("hosts") else {}))
            figures = {"latency_ms": 1.1, "kernels": 3} if odd else {"latency_ms": 1.0, "kernels": 2}
            made.result(environment="b" if odd and more.get("software") else "a", **figures)
        return {one.series.metric: one.with_ for one in made.judge().flapping}

    @pytest.mark.parametrize(
        "given, said",
        [
            ({}, ()),
            ({"hosts": True}, ("host node | other",)),
            ({"software": True}, ("torch 2.11 | 2.13",)),
            ({"hosts": True, "software": True}, ("host node | other", "torch 2.11 | 2.13")),
        ],
    )
    def test_what_is_never_the_same(self, given, said):
        assert self.flapping(**given) == {"latency_ms": said, "kernels": said}


def test_an_empty_database():
    found = Made().judge()
    assert (found.events, found.states, found.new, found.dead, found.sweeps) == ([], {}, [], [], [])


def test_one_sweep():
    found = latencies([1.0]).judge()
    assert found.events == [] and set(found.states.values()) == {"short"}


def test_ids_are_short_and_distinct():
    found = latencies(noisy(15) + noisy(15, 1.1, 1)).judge()
    assert [len(one) for one in found.short_ids().values()] == [6]


def test_metrics_that_have_a_history():
    assert set(DEFAULT_METRICS) <= set(judgeable())
    assert "flops" not in judgeable() and "throughput_per_s" not in judgeable()

"""Which changes of a history are acknowledged: by rows of the database, or by exceptions."""

import itertools

import pytest
from made_history import GPU, STEP, ack, latencies, noisy

from effbench.analysis.history import event_id
from effbench.analysis.limits import limits_of


@pytest.mark.parametrize(
    ("sweep_id", "held"),
    [("s013", False), ("s014", True), ("s015", True), ("s016", True), ("s017", False)],
)
def test_an_acknowledgement_holds_within_one_sweep(sweep_id, held):
    (event,) = latencies(STEP).judge(acknowledged=[ack(sweep_id)]).changes
    assert (event.acknowledged == "known") is held and event.alarms is not held
    # the id is that under which it was acknowledged
    assert event.id == event_id(event.series, sweep_id if held else "s015")


@pytest.mark.parametrize("other", [{"metric": "period_ms"}, {"place": "other"}, {"cell": "other"}])
def test_an_acknowledgement_is_of_one_series(other):
    made = latencies(STEP)
    assert made.judge(acknowledged=[ack("s015", **other)]).changes[0].acknowledged is None


def test_sweeps_without_a_result_do_not_count():
    made = latencies([*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)])
    assert made.judge(acknowledged=[ack("s009")]).changes[0].acknowledged == "known"


@pytest.mark.parametrize(
    ("rows", "held"),
    [
        ([ack("s011")], (7, None)),
        ([ack("s013")], (None, 7)),
        ([ack("s010"), ack("s014", id=8)], (7, 8)),
    ],
)
def test_each_holds_for_the_nearest_change(rows, held):
    """The next change of the series alarms again, even close by."""
    made = latencies(noisy(10) + noisy(3, 1.1, 1) + noisy(10, 1.3, 2))
    changes = sorted(made.judge(acknowledged=rows).changes, key=lambda event: event.after_sweep)
    assert [event.after_sweep for event in changes] == ["s010", "s013"]
    assert tuple(event.acknowledgement for event in changes) == held


@pytest.mark.parametrize(
    "rows", [*itertools.permutations([ack("s014", id=8), ack("s015"), ack("s016", id=9)])]
)
def test_of_several_the_nearest_holds(rows):
    assert latencies(STEP).judge(acknowledged=rows).changes[0].acknowledgement == 7


IGNORED = {"model": "m*", "metric": "latency_ms", "hardware": GPU, "ignore": True}


@pytest.mark.parametrize(
    ("rules", "held"),
    [
        ([IGNORED], True),
        ([{"metric": "period_ms", "ignore": True}], False),
        ([IGNORED, {"bs": 1, "floor": 0.5}], False),
        ([{"bs": 1, "floor": 0.5}, IGNORED, {"bs": 8, "floor": 0.5}], True),
    ],
)
def test_a_change_is_acknowledged_if_the_last_exception_that_matches_ignores_it(rules, held):
    made = latencies(STEP)
    made.environment(flags={"interpreter": "/a"})
    limits = limits_of({"exceptions": [{**rule, "reason": "shared runner"} for rule in rules]})
    (event,) = made.judge(limits=limits).changes
    assert (event.acknowledged == "shared runner") is held and event.alarms is not held
    known = [ack("s015", place=event.series.place)]
    assert made.judge(acknowledged=known, limits=limits).changes[0].acknowledged == "known"

"""Which changes of a history are acknowledged: by rows of the database, or by exceptions."""

import itertools

from made_history import GPU, STEP, ack, latencies, noisy

from effbench.comparison.history import event_id
from effbench.comparison.limits import limits_of


def test_an_acknowledgement_holds_within_one_sweep():
    made = latencies(STEP)
    for sweep_id, held in (
        ("s013", False),
        ("s014", True),
        ("s015", True),
        ("s016", True),
        ("s017", False),
    ):
        (event,) = made.judge(acknowledged=[ack(sweep_id)]).changes
        assert (event.acknowledged == "known") is held and event.alarms is not held
        # the id is that under which it was acknowledged
        assert event.id == event_id(event.series, sweep_id if held else "s015")
    for other in ({"metric": "period_ms"}, {"place": "other"}, {"cell": "other"}):
        assert made.judge(acknowledged=[ack("s015", **other)]).changes[0].acknowledged is None
    values = [*noisy(10), *[None] * 10, *noisy(10, 1.1, 1)]
    assert latencies(values).judge(acknowledged=[ack("s009")]).changes[0].acknowledged == "known"


def test_each_holds_for_one_change():
    """The nearest: the next change of the series alarms again, even close by."""
    made = latencies(noisy(10) + noisy(3, 1.1, 1) + noisy(10, 1.3, 2))
    for rows, held in (
        ([ack("s011")], (7, None)),
        ([ack("s013")], (None, 7)),
        ([ack("s010"), ack("s014", id=8)], (7, 8)),
    ):
        first, second = sorted(
            made.judge(acknowledged=rows).changes, key=lambda event: event.after_sweep
        )
        assert (first.after_sweep, second.after_sweep) == ("s010", "s013")
        assert (first.acknowledgement, second.acknowledgement) == held
        assert (first.alarms, second.alarms) == tuple(one is None for one in held)
    # of several, the nearest
    for rows in itertools.permutations([ack("s014", id=8), ack("s015"), ack("s016", id=9)]):
        assert latencies(STEP).judge(acknowledged=rows).changes[0].acknowledgement == 7


def test_a_change_is_acknowledged_if_the_last_exception_that_matches_ignores_it():
    made = latencies(STEP)
    made.environment(flags={"interpreter": "/a"})
    ignored = {"model": "m*", "metric": "latency_ms", "hardware": GPU, "ignore": True}
    for rules, held in (
        ([ignored], True),
        ([{"metric": "period_ms", "ignore": True}], False),
        ([{"model": "m*", "floor": 0.5}], False),
        ([ignored, {"bs": 1, "floor": 0.5}], False),
        ([{"bs": 1, "floor": 0.5}, ignored, {"bs": 8, "floor": 0.5}], True),
    ):
        limits = limits_of({"exceptions": [{**rule, "reason": "shared runner"} for rule in rules]})
        (event,) = made.judge(limits=limits).changes
        assert (event.acknowledged == "shared runner") is held and event.alarms is not held, rules
        known = [ack("s015", place=event.series.place)]
        assert made.judge(acknowledged=known, limits=limits).changes[0].acknowledged == "known"

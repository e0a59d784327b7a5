"""Pairs: two steps in turn, so that both meet the same host."""

import itertools
import statistics
from dataclasses import replace

import pytest
import torch
from turned_clock import TurnedClock

from effbench.measure.pairs import BatchPair as Pair
from effbench.measure.pairs import LatencySide, Pairs, TimedBatch, ratios, take_pairs
from effbench.measure.rules import Rules
from effbench.measure.timing import BATCH_MS, Timer

RULES = Rules(min_time_s=0.0, min_samples=20, max_samples=1000)
#: A target that no interval reaches.
NEVER = -1.0


class MadeUpSide:
    """A step of `ms` on a host whose slowdown `speed` returns at each moment."""

    depends_on_host = True

    def __init__(self, clock):
        self.clock = clock
        self.ms = 1.0
        self.speed = lambda: 1.0

    def batch(self):
        self.clock.calls.append(self)
        ms = self.ms * self.speed()
        self.clock.now += 0.003 * self.speed()
        self.ended = self.clock.now
        return TimedBatch(ms)


class MadeUpHost:
    """A host that is disturbed in these moments."""

    def __init__(self, clock, is_disturbed):
        self.clock = clock
        self.is_disturbed = is_disturbed

    def begin(self): ...

    def was_undisturbed(self, seconds, waited_ms):
        return not self.is_disturbed(self.clock.now)

    def calm(self):
        self.clock.now += 0.01


@pytest.fixture
def clock(monkeypatch):
    """It shows the seconds that batches have taken, and whose they were."""
    return TurnedClock(monkeypatch)


@pytest.fixture
def sides(clock):
    return MadeUpSide(clock), MadeUpSide(clock)


def test_the_order_changes_with_each_pair(clock, sides):
    eager, mode = sides
    take_pairs(
        eager,
        mode,
        replace(RULES, max_samples=4),
        1.0,
        None,
    )
    assert clock.calls == [mode, eager, eager, mode] * 2


@pytest.mark.parametrize(
    ("budget_s", "target", "expected"),
    [(1.0, 0.005, 20), (0.09, 0.005, 15), (0.0, 0.005, 9), (0.6, NEVER, 100)],
    ids=["known", "the budget is spent", "enough for an interval", "never known"],
)
def test_pairs_end_once_the_ratio_is_known_or_the_budget_is_spent(
    sides, budget_s, target, expected
):
    taken = take_pairs(
        *sides,
        replace(RULES, target_interval=target),
        budget_s,
        None,
    )
    assert len(taken.undisturbed) == pytest.approx(expected, abs=1)


def test_pairs_of_long_calls_end_after_some_seconds(clock, sides):
    for side in sides:
        side.speed = lambda: 500.0
    taken = take_pairs(
        *sides,
        RULES,
        0.1,
        None,
    )
    assert len(taken.undisturbed) == 4
    assert clock.now == pytest.approx(12.0, abs=0.1)


def test_enough_undisturbed_pairs_give_the_figure_and_the_others_are_kept_apart(clock, sides):
    """Where only one side waits for the host, the ratio is another one in disturbed moments."""

    def is_disturbed(seconds):
        return seconds % 0.4 > 0.2

    eager, graph = sides
    eager.ms = 4.1
    eager.speed = lambda: 1.2 if is_disturbed(clock.now) else 1.0
    host = MadeUpHost(clock, is_disturbed)
    taken = take_pairs(
        eager,
        graph,
        replace(RULES, target_interval=NEVER),
        3.0,
        host,
    )
    figure = taken.figure(RULES)
    assert figure.median.value == pytest.approx(4.1)
    assert figure.is_marked is False
    assert statistics.median(ratios(taken.disturbed)) == pytest.approx(4.92)


def test_a_side_that_does_not_depend_on_the_host_may_meet_disturbed_moments(clock, sides):
    """Then only the other side's batches need quiet ones."""
    eager, graph = sides
    host = MadeUpHost(clock, lambda seconds: seconds == graph.ended)
    assert take_pairs(eager, graph, RULES, 0.1, host).disturbed
    graph.depends_on_host = False
    assert not take_pairs(eager, graph, RULES, 0.1, host).disturbed


#: By name: the ratios of undisturbed pairs and of disturbed ones, and whether the figure is marked.
FEW = {
    "ten are enough": ([4.1] * 10, [4.9] * 100, False),
    "nine are not": ([4.1] * 9, [4.9] * 100, True),
    "less than a tenth may only look undisturbed": ([4.1] * 12, [4.9] * 130, True),
    "unless the others have the same ratio": ([1.05] * 12, [1.06] * 300, False),
    "all are disturbed": ([], [4.9] * 100, True),
    "nine of twelve": ([4.1] * 9, [4.9] * 3, False),
}


@pytest.mark.parametrize(("kept", "lost", "is_marked"), FEW.values(), ids=FEW)
def test_how_many_undisturbed_pairs_are_enough(kept, lost, is_marked):
    disturbed = [Pair(2 * ratio, 2.0, is_disturbed=True) for ratio in lost]
    figure = Pairs([*disturbed, *(Pair(ratio, 1.0) for ratio in kept)]).figure(RULES)
    assert figure.is_marked is is_marked
    expected = statistics.median(kept + lost) if is_marked else kept[0]
    assert figure.median.value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("latency_ms", "warm", "calls"), [(0.5, 10, 6), (BATCH_MS, 2, 1), (50.0, 1, 1)]
)
def test_a_batch_takes_some_milliseconds_after_calls_that_do_not_count(latency_ms, warm, calls):
    made = itertools.count()
    timer = Timer(
        lambda x: next(made),
        [((1,), {})],
        torch.device("cpu"),
        RULES,
    )
    side = LatencySide(timer, latency_ms)
    assert side.batch().ms > 0
    assert next(made) == warm + calls


@pytest.mark.parametrize(("disturbed_from", "seconds"), [(9.0, 0.5), (0.1, 1.5), (0.4, 0.5)])
def test_a_disturbed_host_gets_more_time(clock, sides, disturbed_from, seconds):
    """As long as too few pairs are undisturbed."""
    patient = replace(RULES, patience=3.0, target_interval=NEVER)
    take_pairs(
        *sides,
        patient,
        0.5,
        MadeUpHost(clock, lambda now: now > disturbed_from),
    )
    assert clock.now == pytest.approx(seconds, abs=0.02)

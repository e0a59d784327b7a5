"""Warm-up and stopping, against a clock that the tests turn."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from turned_clock import TurnedClock

from effbench.measure import timing
from effbench.measure.rules import FEWEST_PASSES, Rules
from effbench.measure.samples import FEWEST_SAMPLES, Timing
from effbench.measure.timing import Timer

CPU = torch.device("cpu")
RULES = Rules(budget_s=2.0, min_block_ms=1.0)
INPUTS = [((i,), {"k": i}) for i in range(3)]
SIZES = [3, 1, 3, 2]
STREAM = [((size,), {}) for size in SIZES]
STREAM_RULES = dataclasses.replace(
    RULES,
    budget_s=1.0,
    min_time_s=0.01,
    min_samples=8,
    target_interval=0.5,
    max_samples=4000,
    warmup_calls=6,
    warmup_s=0.0,
)


QUICKER = [0.02 / (1 + i / 10) for i in range(250)]


def rules(**changed):
    return dataclasses.replace(RULES, **changed)


@pytest.mark.parametrize(
    ("durations", "budget_s", "least", "most", "steady"),
    [
        (itertools.repeat(0.001), 2.0, 200, 200, True),  # the least calls and the least time
        (itertools.repeat(0.9), 60.0, 3, 3, True),  # slow calls need no ten of them
        ((0.001 * 1.05**i for i in itertools.count()), 1e9, 95, 105, False),  # 2 s
        ((0.01 * 1.1**i for i in itertools.count()), 1.0, 26, 28, False),  # the budget
        # 250 calls that grow quicker, then a plateau
        (itertools.chain(QUICKER, itertools.repeat(0.02 / 26)), 60.0, 100, 1000, True),
    ],
)
def test_warm_up_ends(monkeypatch, durations, budget_s, least, most, steady):
    clock = TurnedClock(monkeypatch, durations)
    done = Timer(clock.step, INPUTS, CPU, rules(budget_s=budget_s)).warm_up()
    assert done.steady == steady
    assert least <= len(done.samples_ms) <= most
    assert clock.calls[:3] == INPUTS, "inputs rotate"


@pytest.mark.parametrize(
    ("durations", "max_samples", "calls", "seconds"),
    [
        (itertools.repeat(0.001), 9000, 500, 0.5),  # the median is known
        (itertools.repeat(0.05), 9000, 30, 1.5),  # the least samples of slow calls
        (itertools.cycle([0.001, 0.002]), 9000, 1333, 2.0),  # noise uses up the budget and no more
        (itertools.repeat(30.0), 9000, 1, 30.0),
        (itertools.cycle([1e-6, 3e-6]), 500, 500, 0.001),
    ],
)
def test_latency_ends(monkeypatch, durations, max_samples, calls, seconds):
    clock = TurnedClock(monkeypatch, durations)
    done = Timer(clock.step, INPUTS, CPU, rules(max_samples=max_samples)).latency(2.0)
    assert len(done.samples_ms) == pytest.approx(calls, rel=0.1)
    assert clock.now == pytest.approx(seconds, rel=0.1)
    assert sum(done.samples_ms) == pytest.approx(clock.now * 1e3)


@pytest.mark.parametrize(
    ("host_tolerance", "patience", "discards"), [(0.1, 2.0, True), (None, 1.0, False)]
)
def test_without_a_tolerance_nothing_is_discarded_and_nothing_waited_for(
    host_tolerance, patience, discards
):
    result = Rules.of({"host_tolerance": host_tolerance, "patience": 2.0, "rounds": 3})
    assert result.patience == patience
    assert result.discards == discards


#: A host that is disturbed all the time.
BUSY = SimpleNamespace(begin=lambda: None, was_undisturbed=lambda seconds: False, calm=lambda: None)


DISTURBED = {
    "a call of seconds": ([1.0], [], False),
    "enough are undisturbed": ([1.0] * 30, [2.0] * 100, False),
    "one too few is undisturbed": ([1.0] * 29, [2.0] * 100, True),
    "all are disturbed": ([], [2.0], True),
    "the medians are the same": ([1.0] * 29, [1.019] * 100, False),
    "too few to tell that the medians are the same": (
        [1.0] * (FEWEST_SAMPLES - 1),
        [1.0] * 50,
        True,
    ),
    "too small a part to tell": ([1.0] * 29, [1.0] * 300, True),
}


@pytest.mark.parametrize(("kept", "lost", "is_marked"), DISTURBED.values(), ids=DISTURBED)
def test_a_figure_is_marked_if_too_few_samples_are_undisturbed(kept, lost, is_marked):
    assert Timing(kept, disturbed_ms=lost).figure(Rules()).is_marked is is_marked


#: By name: samples that count, those that do not, the slowdown of the host, and the median of the
#: figure with its bounds.
FIGURES = {
    "marked: of all samples, with both medians": ([1.0] * 20, [3.0] * 100, 3.0, (3.0, 1.0, 3.0)),
    "the intervals of both medians": (
        [0.9] * 10 + [1.1] * 10,
        [2.5] * 50 + [3.5] * 50,
        1.0,
        (2.5, 0.9, 3.5),
    ),
    "hardly any": ([2.9] * 9, [3.0] * 100, 3.0, (3.0, 1.0, 3.0)),
    "some": ([2.9] * 10, [3.0] * 100, 3.0, (3.0, 2.9, 3.0)),
    "the fastest sample": ([], [3.0] * 99 + [0.5], 2.0, (3.0, 0.5, 3.0)),
    "too few samples for an interval": ([], [2.0, 4.0, 3.0], 1.0, (3.0, 2.0, 4.0)),
}


@pytest.mark.parametrize(("kept", "lost", "slowdown", "expected"), FIGURES.values(), ids=FIGURES)
def test_the_median_of_a_figure_and_its_bounds(kept, lost, slowdown, expected):
    median = Timing(kept, disturbed_ms=lost).figure(Rules(), slowdown).median
    assert (median.value, median.low, median.high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("call_s", "most", "calls"),
    [(0.5, 100, 9), (3.0, 100, 4), (0.5, 2, 2)],
    ids=["beyond the budget", "for ten seconds", "no more than allowed"],
)
def test_a_few_calls_are_timed_even_beyond_the_budget(monkeypatch, call_s, most, calls):
    """Fewer samples have no interval of their median."""
    clock = TurnedClock(monkeypatch)
    timer = Timer(
        clock.taking(lambda *_, **more: call_s),
        INPUTS,
        CPU,
        rules(max_samples=most),
    )
    result = timer.latency(0.2)
    assert result.samples_ms == pytest.approx([call_s * 1e3] * calls)
    result = dataclasses.replace(timer, host=BUSY).latency(0.2)
    assert result.samples_ms == []
    assert len(result.disturbed_ms) == calls


class TestStream:
    """Whole passes, every size with its weight, disturbed passes thrown away whole."""

    @pytest.fixture
    def clock(self, monkeypatch):
        """With `step`, a call of 0.2 ms for each of its size."""
        clock = TurnedClock(monkeypatch)
        clock.step = clock.taking(lambda size: size * 2e-4)
        return clock

    def timer(self, step, watch=None, **changed):
        return Timer(
            step, STREAM, CPU, dataclasses.replace(STREAM_RULES, **changed), watch, whole=4
        )

    def test_warm_up_is_whole_passes(self, clock):
        result = self.timer(clock.step).warm_up()
        assert result.steady
        assert result.samples_ms == pytest.approx([0.6, 0.2, 0.6, 0.4] * 2)
        assert [args[0] for args, _ in clock.calls] == SIZES * 2

    def test_latency_is_whole_passes_in_order(self, clock):
        result = self.timer(clock.step).latency(1.0)
        passes = len(result.samples_ms) // 4
        assert passes >= FEWEST_PASSES
        assert [args[0] for args, _ in clock.calls] == SIZES * passes
        assert len(result.enqueue_ms) == len(clock.calls)
        assert len(self.timer(clock.step).latency(0.0).samples_ms) == 4, "at least a pass"

    @pytest.mark.parametrize("host_tolerance", [0.1, None])
    def test_passes_of_a_disturbed_gpu_are_thrown_away_whole(self, clock, host_tolerance):
        looks = iter([False, True, True])
        watch = SimpleNamespace(discard_if_disturbed=lambda: next(looks, False))
        result = self.timer(clock.step, watch, host_tolerance=host_tolerance).latency(1.0)
        assert len(result.samples_ms) % 4 == 0
        assert len(clock.calls) > len(result.samples_ms) == len(result.enqueue_ms)
        assert bool(result.disturbed_ms) is (host_tolerance is not None), "nothing keeps them apart"


class Event:
    """As torch.cuda.Event, by the host's clock."""

    def __init__(self, enable_timing=False): ...
    def record(self):
        self.at = time.perf_counter()

    def synchronize(self): ...
    def elapsed_time(self, other):
        return (other.at - self.at) * 1e3


def test_every_call_is_counted_for_the_energy(monkeypatch):
    """A series begins with a block that is not timed: its calls use energy as well."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: None)
    clock = TurnedClock(monkeypatch)
    step = clock.taking(lambda *_, **more: 0.002)
    counted = []
    timer = Timer(
        step,
        INPUTS,
        CPU,
        RULES,
        SimpleNamespace(poll=counted.append),
    )
    series = timing.BlockSeries(itertools.cycle(INPUTS), calls=3)
    result = timer.time_blocks(series, 5)
    assert counted[-1] == len(clock.calls) == 3 * (1 + 5)
    assert result.samples_ms == pytest.approx([2.0] * 5)


@pytest.mark.parametrize(
    ("samples", "varies", "bounds"),
    [
        ([6.0] * 20 + [32.0] * 20, True, (6.0, 32.0)),
        ([5.0, 9.0], True, (5.0, 9.0)),
        ([6.0] * 40 + [32.0] * 4, False, (6.0, 6.0)),
        ([5.0, 7.0], False, (None, None)),
    ],
    ids=["two speeds", "few samples", "a few outliers", "few samples that agree"],
)
def test_a_figure_of_several_speeds_has_their_bounds(samples, varies, bounds):
    figure = Timing(samples).figure(Rules())
    assert figure.varies == varies
    assert figure.is_marked is False
    assert (figure.median.low, figure.median.high) == bounds


@dataclasses.dataclass(frozen=True)
class ScriptedTimer(Timer):
    """A timer of single calls and blocks on a GPU that take these ms, one after the other."""

    singles: Iterator[float] | None = None
    periods: Iterator[float] | None = None
    enqueue_ms: float = 0.0

    def call(self, rotation, calls):
        return Timing([next(self.singles)] * calls)

    def time_block(self, calls):
        return timing.CallBlock(calls, self.enqueue_ms, next(self.periods))


@pytest.mark.parametrize(
    ("singles", "periods", "enqueue_ms", "shows"),
    [
        ([9.9, 10.2, 9.4], [9.3, 10.1, 10.3, 9.4], 2.4, False),
        ([10.2, 10.2, 10.2], [9.3, 9.6, 9.6, 9.6], 2.4, True),
        ([9.9, 10.2, 9.4], [9.3, 10.1, 10.3, 9.4], 8.0, True),
    ],
    ids=["the clocks change", "a single call waits for its launch", "launches are slow"],
)
def test_whether_the_host_shows_in_a_step(singles, periods, enqueue_ms, shows):
    timer = ScriptedTimer(
        print,
        INPUTS,
        torch.device("cuda"),
        RULES,
        singles=iter(singles),
        periods=iter(periods),
        enqueue_ms=enqueue_ms,
    )
    assert timer.waits_for_host() is shows

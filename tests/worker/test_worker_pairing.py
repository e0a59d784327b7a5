"""The phase `pairs`: eager and the mode in turn, after all else has been measured."""

import statistics
from dataclasses import asdict
from typing import ClassVar

import pytest
from own_cells import EAGER, cpu_cell, own_model, run_trial, target_of
from torch import nn

from effbench.core.cell import Status
from effbench.core.settings import Protocol
from effbench.measure.host import HostWatch
from effbench.measure.pairs import BatchPair, Pairs
from effbench.measure.rules import Rules
from effbench.modes.base import Mode, Prepared
from effbench.workloads.generation import Generation
from effbench.workloads.stream import StreamCalls
from effbench.workloads.training import TrainingSteps

PROTOCOL = asdict(
    Protocol(
        budget_s=1.5,
        min_time_s=0.1,
        warmup_s=0.05,
        host_tolerance=1000.0,
    )
)


class Twice(Mode):
    """Calls the module twice: half as fast as eager."""

    def prepare(self, module, example):
        def step(*given):
            module(*given)
            return module(*given)

        return Prepared(step)


class Layers(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(32, 32) for _ in range(12)))


class Counting(Layers):
    """Counts its calls in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return super().forward(x) + 0.0 * self.seen


def run(module, baseline=EAGER):
    """A trial of this module in the mode `Twice`, and its phases."""
    phases = []
    cell = cpu_cell(model=own_model(module, 32), mode=own_mode(Twice))
    record = run_trial(cell, PROTOCOL, phases.append, baseline=baseline)
    assert record.status is Status.OK, (record.reason, record.extra.get("traceback"))
    return record, phases


def own_mode(kind):
    return {"name": "own", "_target_": target_of(kind)}


def test_the_speedup_is_that_of_neighbouring_batches():
    record, phases = run(Layers)
    assert record.pair_speedup == pytest.approx(0.5, rel=0.3)
    assert record.pair_speedup_low <= record.pair_speedup <= record.pair_speedup_high
    eager, own = record.samples["pair_baseline_ms"], record.samples["pair_own_ms"]
    ratios = [one / other for one, other in zip(eager, own, strict=True)]
    assert record.pair_speedup == pytest.approx(statistics.median(ratios))
    assert record.pairs == len(ratios) + len(record.samples.get("pair_own_disturbed_ms", ()))
    # after all that eager's calls could change
    assert phases.index("facts") < phases.index("pairs")
    assert phases.count("pairs") == 1


def without_pairs(record):
    assert record.pair_speedup is record.pairs is None
    assert not any("pair" in name for name in record.samples)
    assert record.latency_ms > 0
    return record.extra["no_pairs"]


@pytest.mark.parametrize(("ratios", "is_marked"), [([1.07] * 20, False), ([1.07, 1.2] * 10, True)])
def test_all_pairs_count_if_their_ratio_does_not_follow_the_host(ratios, is_marked):
    """As where the GPU is the bottleneck of both sides."""
    pairs = Pairs([BatchPair(ratio, 1.0, is_disturbed=True) for ratio in ratios])
    host = HostWatch(None, 1.1, moves=False)
    host.slow_works_ms = [1.0, 1.3] * 10
    figure = pairs.figure(Rules(), host)
    assert figure.is_marked is is_marked
    assert figure.median.value == pytest.approx(statistics.median(ratios))
    assert pairs.figure(Rules()).is_marked, "nothing shows that they do not"


def test_no_pairs_where_calls_change_a_plain_attribute():
    record, _ = run(Counting)
    assert without_pairs(record) == "each call changes the module's attribute seen"


class Slow(Mode):
    """Calls the module four times."""

    prepared: ClassVar = []

    def prepare(self, module, example):
        Slow.prepared.append(module)

        def step(*given):
            for _ in range(4):
                output = module(*given)
            return output

        return Prepared(step)


class Nowhere(Slow):
    def missing(self, device):
        return f"it needs another device than {device.type}"


class Failing(Slow):
    """As if its memory and the mode's did not fit on a GPU together."""

    def prepare(self, module, example):
        return Prepared(None)


def test_a_baseline_other_than_eager_is_prepared_on_a_copy():
    Slow.prepared.clear()
    record, _ = run(Layers, baseline=own_mode(Slow))
    assert record.pair_speedup > 1.2, "it calls the module twice as often"
    (copied,) = Slow.prepared
    assert copied.forward.__code__.co_name == "baseline_forward"


@pytest.mark.parametrize(
    ("baseline", "words"),
    [(Nowhere, "it needs another device than cpu"), (Failing, "is not callable")],
)
def test_a_baseline_that_cannot_run_leaves_the_trial_without_pairs(baseline, words):
    record, _ = run(Layers, baseline=own_mode(baseline))
    assert words in without_pairs(record)


@pytest.mark.parametrize(
    ("workload", "words"),
    [(TrainingSteps, "weights"), (Generation, "as a whole"), (StreamCalls, "as a whole")],
)
def test_what_cannot_alternate(workload, words):
    assert words in workload.unpaired(workload)

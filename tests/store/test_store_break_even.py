"""After how many calls a preparation pays for itself: by the latency, and only if the gain is
significant."""

from dataclasses import replace

import pytest

from effbench import metrics
from effbench.cell import Status, Trial
from effbench.report import tables
from effbench.store import summary
from effbench.store.summary import Baseline, summarise

#: Five rounds of eager and of a mode that takes half as long, but has a longer period.
EAGER = [
    Trial("e", number, Status.OK, latency_ms=4.0 + number / 1000, period_ms=1.0)
    for number in range(5)
]
GRAPH = [
    Trial("g", number, Status.OK, latency_ms=2.0 + number / 1000, period_ms=3.0, prepare_s=1.0)
    for number in range(5)
]
BUSY = "host busy for 80 % of the timing"


def calls(trials=GRAPH, baseline=EAGER):
    return summarise(trials, bs=1, baseline=Baseline.of(baseline)).break_even_calls


@pytest.mark.parametrize("order", [["speedup", "period_speedup"], ["period_speedup", "speedup"]])
def test_the_latency_decides_whatever_the_order_of_the_speedups(monkeypatch, order):
    monkeypatch.setattr(summary, "SPEEDUPS", {name: metrics.SPEEDUPS[name] for name in order})
    assert calls() == pytest.approx(500, abs=1), "1 s ÷ 2 ms; by the period it would never pay"


def test_without_a_latency_of_the_baseline_nothing_pays_back():
    assert calls(baseline=[replace(trial, latency_ms=None) for trial in EAGER]) is None
    assert calls(trials=[replace(trial, latency_ms=None) for trial in GRAPH]) is None


def test_marked_figures_on_either_side_pay_nothing_back():
    marked_graph = [replace(trial, disturbance=BUSY) for trial in GRAPH]
    marked_eager = [replace(trial, disturbance=BUSY) for trial in EAGER]
    assert calls(trials=marked_graph) is None
    assert calls(baseline=marked_eager) is None
    row = summarise(marked_graph, bs=1, baseline=Baseline.of(EAGER))
    assert row.speedup == pytest.approx(2.0, rel=0.01), "the figure itself is shown"
    one_marked = [replace(EAGER[0], disturbance=BUSY), *EAGER[1:]]
    assert calls(baseline=one_marked) == pytest.approx(500, abs=1), (
        "four unmarked rounds are enough"
    )


def test_a_gain_that_is_not_significant_pays_nothing_back():
    spread = [replace(trial, latency_ms=2.0 * 3.0**number) for number, trial in enumerate(GRAPH)]
    assert calls(trials=spread) is None


def test_the_speedups_are_defined_once():
    assert tables.SPEEDUPS is summary.SPEEDUPS is metrics.SPEEDUPS

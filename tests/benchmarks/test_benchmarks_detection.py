"""The replay of recorded noise: it draws what was recorded, and its rules are those that they are
named after."""

import importlib
import itertools
import math
import re
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
detection = importlib.import_module("detection")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def templates():
    return detection.templates_of(detection.load())


def test_a_template_has_the_spread_and_the_shifts_of_its_recording():
    """Two sweeps of one cell: sweep 1 is 10 % slower, with trials at ± 1 %."""
    trials = []
    for sweep, number in itertools.product((0, 1), range(20)):
        figure = (1.1 if sweep else 1.0) * (1.01 if number % 2 else 0.99)
        about = {
            "db": "a",
            "sweep": sweep,
            "round": number,
            "cell": "x",
            "kind": "GPU-bound",
            "kernels": 3,
        }
        figures = {"peak_allocated_bytes": 7, **dict.fromkeys(detection.FIGURES, figure)}
        trials.append({**about, **figures, "latencies_ms": [figure] * 60})
    (one,) = detection.templates_of(trials)
    assert np.nanstd(one.deviations[:, 0]) == pytest.approx(0.01 * np.sqrt(20 / 19), rel=1e-3)
    # both sweeps lie 4.77 % off the middle; what 20 trials explain of that is next to nothing
    assert one.shifts[:, 0].std(ddof=1) == pytest.approx(np.log(1.1) / np.sqrt(2), rel=1e-2)
    assert one.with_spread(0.2, ("latency_ms",)).deviations[:, 0].std() == pytest.approx(0.2)


def test_the_recording_names_no_machine():
    text = detection.RECORDING.read_text(encoding="utf-8")
    assert len(text) < 1e6 and not re.search(r"GPU-[0-9a-f]{6}|/|pid|uuid|host_?name", text)


def test_slowed_cells_are_flagged_and_confirmed(templates):
    one = next(template for template in templates if template.kind == "GPU-bound")
    injected = np.full(len(detection.FIGURES), math.log(1.1))
    found = detection.slower(detection.screened([detection.case_of(RANDOM, one, 0.0, injected)]))[0]
    assert {change.metric for change in found} >= {"latency_ms", "period_ms"}
    shift = one.shift(RANDOM)
    old, new, same = (one.trials(RANDOM, shift, change, 9) for change in (0.0, injected, 0.0))
    again = {0: detection.Case(one.kind, old, new, {}), 1: detection.Case(one.kind, old, same, {})}
    flagged = {index: [replace(change, key=str(index)) for change in found] for index in again}
    assert detection.confirmed(flagged, again) == {0}


def test_the_rules_of_peers():
    def called(factor, noise=0.002):
        values = RANDOM.normal(1.0, noise, (2, 5, 60))
        values[1] *= factor
        drawn = [
            detection.Drawn(np.repeat(one.mean(axis=1)[:, None], 4, axis=1), one) for one in values
        ]
        return detection.peers(detection.Case("GPU-bound", *drawn, {}))

    torchbench, pyperf, asv = detection.PEERS[:3]
    assert called(1.0) <= {pyperf} and called(1.05) == {pyperf}
    assert called(1.08) == {pyperf, torchbench} and called(1.15) == {pyperf, torchbench, asv}
    # means of those before: 10 (itself), 10, 10.5, 10.333 -> residuals 0, 1, -0.5, 0.6667
    history, deviation = (
        np.array([10.0, 11.0, 10.0, 11.0]),
        statistics.stdev([0.0, 1.0, -0.5, 11 - 31 / 3]),
    )
    assert detection.conbench(history, 10.5 + 5.01 * deviation)
    assert not detection.conbench(history, 10.5 + 4.99 * deviation) and not detection.conbench(
        history[:1], 99.0
    )

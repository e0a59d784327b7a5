"""Faults at random moments of sweeps (benchmarks/faults.py): nothing is lost, counted twice or left
behind."""

import importlib
import sys
from pathlib import Path

import pytest

# its scripts import each other by plain names
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
faults = importlib.import_module("faults")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_things_break():
    counts = faults.inject(range(len(faults.KINDS)), seed=0, jobs=1, each=12)
    assert counts.problems == []
    counted = counts.total
    assert counted.injected == len(faults.KINDS)
    assert (counted.lost, counted.twice, counted.orphans) == (0, 0, 0)
    assert counted.committed > len(faults.KINDS)
    assert counted.resumed > 0

"""Faults at random moments of sweeps (benchmarks/faults.py): nothing is lost, counted twice or left
behind."""

import importlib
import sys
from pathlib import Path

import pytest

# its scripts import each other by plain names
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
faults = importlib.import_module("faults")

#: Killed sweeps, servers and workers, and a full disk.
USUAL = 4


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "numbers",
    [range(USUAL), pytest.param(range(USUAL, len(faults.KINDS)), marks=pytest.mark.slow)],
)
def test_nothing_is_lost_when_things_break(numbers):
    tallies, problems = faults.inject(numbers, seed=0, jobs=1, each=12)
    assert problems == []
    counted = sum(tallies.values(), faults.Tally())
    assert counted.injected == len(numbers)
    assert (counted.lost, counted.twice, counted.orphans) == (0, 0, 0)
    assert counted.committed > len(numbers)
    assert counted.resumed > 0

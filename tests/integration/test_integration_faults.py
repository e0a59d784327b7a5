"""Faults at random moments of sweeps (benchmarks/faults.py): nothing is lost, counted twice or left
behind."""

import importlib
import sys
from pathlib import Path

import pytest

# its scripts import each other by plain names
sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
faults = importlib.import_module("faults")
fault_sweep = importlib.import_module("fault_sweep")


def assert_that_nothing_is_lost(kinds, seed):
    numbers = [list(faults.KINDS).index(kind) for kind in kinds]
    tallies, problems = faults.inject(numbers, seed=seed, jobs=1, each=12)
    assert problems == []
    counted = sum(tallies.values(), faults.Tally())
    assert counted.injected == len(numbers)
    assert (counted.lost, counted.twice, counted.orphans) == (0, 0, 0)
    assert counted.committed > len(numbers)
    assert counted.resumed > 0


@pytest.fixture
def one_round(monkeypatch):
    """Twelve cells in one round: each round would start another fork server."""
    kept = [word for word in fault_sweep.SWEEP if not word.startswith(("bs=", "protocol.rounds="))]
    sizes = ",".join(map(str, range(1, 13)))
    monkeypatch.setattr(fault_sweep, "SWEEP", (*kept, f"bs={sizes}", "protocol.rounds=1"))
    monkeypatch.setattr(fault_sweep, "CELLS", 12)


@pytest.mark.timeout(900)
def test_nothing_is_lost_when_a_sweep_and_a_worker_are_killed(one_round):
    # the seed decides that the sweep is killed after a trial, and resumed
    assert_that_nothing_is_lost(["SIGKILL, orchestrator", "SIGKILL, worker"], seed=1)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_when_things_break():
    assert_that_nothing_is_lost(faults.KINDS, seed=0)

"""The simulation of hosts with two speeds: what it counts, and that marked intervals contain the
quiet figure."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from effbench.core.cell import Status, Trial

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
marked_intervals = importlib.import_module("marked_intervals")
Host, Tally = marked_intervals.Host, marked_intervals.Tally
QUICK, THREE_ROUNDS, _ = marked_intervals.PROTOCOLS


def trial(latency_ms, bounds=None, round=0):
    """A trial with this median; with bounds it is marked."""
    made = Trial("simulated", round, Status.OK, latency_ms=latency_ms)
    if bounds:
        made.latency_median_low_ms, made.latency_median_high_ms = bounds
        made.disturbance = "host busy"
    return made


TALLIES = {
    "a right unmarked result": ([trial(1.04)], Tally(results=1)),
    "a wrong unmarked result": ([trial(0.94)], Tally(results=1, wrong=1)),
    "a marked result that holds the quiet figure": (
        [trial(2.0, (0.9, 2.1))],
        Tally(results=1, marked=1, covered=1),
    ),
    "a marked result that does not": ([trial(2.0, (1.1, 2.1))], Tally(results=1, marked=1)),
    "three unmarked trials and a marked one": (
        [*(trial(1.0, round=round) for round in range(3)), trial(9.0, (8.0, 9.0), round=3)],
        Tally(results=1),
    ),
}


@pytest.mark.parametrize(("trials", "expected"), TALLIES.values(), ids=TALLIES)
def test_a_result_is_tallied(trials, expected):
    tally = Tally()
    tally.add(trials, quiet_ms=1.0)
    assert tally == expected


def test_a_host_is_slow_in_spells_for_its_fraction_of_the_time():
    host = Host(0.5, spell_s=0.3, slowdown=2.0)
    states = list(itertools.islice(host.states(np.random.default_rng(0)), 100_000))
    spells = [len(list(group)) for is_slow, group in itertools.groupby(states) if is_slow]
    assert np.mean(states) == pytest.approx(0.5, abs=0.05)
    assert np.mean(spells) * marked_intervals.BATCH_S == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize(
    ("slow", "expected"), [(0.0, Tally(results=3)), (1.0, Tally(results=3, marked=3))]
)
def test_a_host_that_is_never_or_always_slow(slow, expected):
    host = Host(slow=slow, spell_s=3.0, slowdown=2.7)
    tally = marked_intervals.simulate(host, QUICK, sweeps=3, seed=0)
    assert tally.results == 3
    assert tally.marked == expected.marked
    assert tally.wrong == 0


#: Hosts on which a good part of the results is marked.
HOSTS = {
    "short spells": Host(slow=0.9, spell_s=0.06, slowdown=2.7),
    "spells of half a second": Host(slow=0.9, spell_s=0.5, slowdown=1.4),
    "slow for half of the time": Host(slow=0.5, spell_s=3.0, slowdown=2.7),
    "hardly ever quiet": Host(slow=0.99, spell_s=3.0, slowdown=2.7),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "sweeps"), [(QUICK, 400), (THREE_ROUNDS, 200)], ids=["quick", "three rounds"]
)
@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_marked_intervals_contain_the_figure_of_a_quiet_host(host, protocol, sweeps):
    tally = marked_intervals.simulate(host, protocol, sweeps, seed=1)
    assert tally.marked >= 40, "else its fraction says little"
    assert tally.coverage >= 0.9
    assert tally.wrong <= 0.02 * tally.results

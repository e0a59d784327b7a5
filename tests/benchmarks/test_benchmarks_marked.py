"""The simulation of hosts with two speeds: what it counts, and that marked intervals contain the
quiet figure."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from effbench.cell import Status, Trial
from effbench.store import summary

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
marked_intervals = importlib.import_module("marked_intervals")
Host, Protocol, Tally = marked_intervals.Host, marked_intervals.Protocol, marked_intervals.Tally
QUICK, THREE_ROUNDS, STANDARD = marked_intervals.PROTOCOLS


def trial(latency_ms, bounds=None, round=0):
    """A trial with this median; with bounds it is marked."""
    made = Trial("simulated", round, Status.OK, latency_ms=latency_ms)
    if bounds:
        made.latency_median_low_ms, made.latency_median_high_ms = bounds
        made.disturbance = "host busy"
    return made


TALLIES = {
    "a right unmarked result": ([trial(1.04)], Tally(results=1)),
    "a wrong unmarked result": ([trial(1.06)], Tally(results=1, wrong=1)),
    "too low as well": ([trial(0.94)], Tally(results=1, wrong=1)),
    "a marked result that holds the quiet figure": (
        [trial(2.0, (0.9, 2.1))],
        Tally(results=1, marked=1, covered=1),
    ),
    "a marked result that does not": ([trial(2.0, (1.1, 2.1))], Tally(results=1, marked=1)),
    "three unmarked trials and a marked one": (
        [*(trial(1.0, round=round) for round in range(3)), trial(9.0, (8.0, 9.0), round=3)],
        Tally(results=1),
    ),
    "two unmarked trials and a marked one": (
        [*(trial(1.0, round=round) for round in range(2)), trial(2.0, (1.0, 2.0), round=2)],
        Tally(results=1, marked=1, covered=1),
    ),
}


@pytest.mark.parametrize(("trials", "expected"), TALLIES.values(), ids=TALLIES)
def test_a_result_is_tallied(trials, expected):
    tally = Tally()
    tally.add(trials, quiet_ms=1.0)
    assert tally == expected


def test_results_add_up():
    tally = Tally()
    for trials, _ in TALLIES.values():
        tally.add(trials, quiet_ms=1.0)
    assert tally == Tally(results=7, marked=3, covered=2, wrong=2)
    assert tally.coverage == pytest.approx(2 / 3)


def test_without_marked_results_there_is_no_coverage():
    assert Tally(results=5).coverage is None


@pytest.mark.parametrize("slow", [0.1, 0.5, 0.9])
def test_a_host_is_slow_for_its_fraction_of_the_time(slow):
    states = itertools.islice(
        Host(slow, spell_s=0.06, slowdown=2.0).states(np.random.default_rng(0)), 100_000
    )
    assert np.mean(list(states)) == pytest.approx(slow, abs=0.05)


def test_spells_last_as_long_as_they_should():
    states = list(
        itertools.islice(
            Host(0.5, spell_s=0.3, slowdown=2.0).states(np.random.default_rng(0)), 100_000
        )
    )
    spells = [len(list(group)) for is_slow, group in itertools.groupby(states) if is_slow]
    assert np.mean(spells) * marked_intervals.BATCH_S == pytest.approx(0.3, rel=0.15)


@pytest.mark.parametrize("protocol", [QUICK, THREE_ROUNDS], ids=lambda protocol: protocol.name)
def test_a_quiet_host_gives_unmarked_results_that_are_right(protocol):
    tally = marked_intervals.simulate(
        Host(slow=0.0, spell_s=0.06, slowdown=2.7), protocol, sweeps=3, seed=0
    )
    assert tally == Tally(results=3)


def test_a_host_that_is_always_slow_gives_marked_results():
    tally = marked_intervals.simulate(
        Host(slow=1.0, spell_s=3.0, slowdown=2.7), QUICK, sweeps=3, seed=0
    )
    assert (tally.results, tally.marked, tally.wrong) == (3, 3, 0)


def test_the_same_seed_gives_the_same_tally():
    host = Host(slow=0.9, spell_s=0.06, slowdown=2.7)
    first, second = (marked_intervals.simulate(host, QUICK, sweeps=10, seed=4) for _ in range(2))
    assert first == second


def test_the_table_has_a_line_for_each_host_and_protocol(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["marked_intervals.py", "--sweeps", "1"])
    monkeypatch.setattr(marked_intervals, "PROTOCOLS", (QUICK,))
    monkeypatch.setattr(marked_intervals, "FRACTIONS", (0.0, 1.0))
    monkeypatch.setattr(marked_intervals, "SPELLS_S", (0.5,))
    marked_intervals.main()
    *_, quiet, _, slow, _ = capsys.readouterr().out.splitlines()
    assert quiet == "| quick | 0% | 0.5 s | 1.4 × | 0% | – | 0.0% |"
    assert slow.startswith("| quick | 100% | 0.5 s | 1.4 × | 100% |")


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


@pytest.mark.slow
def test_five_rounds_cover_as_well():
    tally = marked_intervals.simulate(HOSTS["hardly ever quiet"], STANDARD, sweeps=100, seed=1)
    assert (tally.marked >= 40, tally.coverage >= 0.9) == (True, True)


@pytest.mark.slow
def test_the_bounds_of_marked_trials_are_what_covers(monkeypatch):
    """The spread between trials alone would hardly ever hold the quiet figure."""
    monkeypatch.setattr(summary, "offsets", lambda trials, name: (0.0, 0.0))
    tally = marked_intervals.simulate(HOSTS["hardly ever quiet"], THREE_ROUNDS, sweeps=100, seed=1)
    assert tally.coverage < 0.5

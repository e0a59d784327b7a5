"""The simulation of hosts with two speeds: what it counts, and that marked intervals contain the
quiet figure."""

import importlib
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))  # its scripts import each other by their plain names
marked_intervals = importlib.import_module("marked_intervals")
Host, Tally = marked_intervals.Host, marked_intervals.Tally
QUICK, THREE_ROUNDS, _ = marked_intervals.PROTOCOLS


def test_a_host_is_slow_in_spells_for_its_fraction_of_the_time():
    host = Host(0.5, spell_s=0.3, slowdown=2.0)
    states = list(itertools.islice(host.states(np.random.default_rng(0)), 100_000))
    spells = [len(list(group)) for is_slow, group in itertools.groupby(states) if is_slow]
    assert np.mean(states) == pytest.approx(0.5, abs=0.05)
    assert np.mean(spells) * marked_intervals.BATCH_S == pytest.approx(0.3, rel=0.15)


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

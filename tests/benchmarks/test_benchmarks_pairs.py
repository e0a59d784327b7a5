"""The tables of benchmarks/pairs.py: standard deviations of all processes, and of unmarked ones."""

import importlib
from pathlib import Path

import pytest

from effbench.core.cell import Status, StoredTrial

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def pairs(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("pairs")


def trial(key, number, latency_ms, **more):
    facts = {"disturbed_fraction": 0.1 * number, "wall_s": 2.0, **more}
    return StoredTrial(
        key,
        number,
        Status.OK,
        latency_ms=latency_ms,
        **facts,
    )


def columns(line):
    return [text.strip() for text in line.strip("|").split("|")]


def test_marked_processes_are_in_the_first_deviation_only(pairs):
    cells = {"e": pairs.Cell("mlp bs=8", "eager"), "d": pairs.Cell("mlp bs=8", "default")}
    rows = [
        trial("e", 0, 2.0),
        trial("e", 1, 2.0),
        trial("e", 2, 8.0, disturbance="host busy"),
        trial("d", 0, 1.0, pair_speedup=2.0),
        trial("d", 1, 1.0, pair_speedup=2.0),
        trial("d", 2, 1.0, pair_speedup=4.0, pair_disturbance="host busy"),
        trial("d", 3, 1.0, pair_speedup=4.0),
    ]
    rounds = pairs.rounds_of(cells["d"], rows, cells, "pair_speedup")
    assert [it.own.round for it in rounds] == [0, 1, 2], "eager has no fourth round"
    found = columns(pairs.compare(cells["d"], rounds, "latency"))
    assert found[:6] == ["mlp bs=8", "default", "latency", "3", "80.0%", "40.0%"]
    assert found[-4:] == ["2", "0.0%", "2", "0.0%"]


def test_times_tell_how_disturbed_the_host_was(pairs):
    rows = [trial("e", round, 2.0) for round in (1, 2, 3)]
    rows.append(trial("e", 4, 4.0, disturbance="host busy"))
    found = columns(pairs.describe_times(pairs.Cell("mlp bs=8", "eager"), rows, "latency"))
    assert found[3:] == ["2", "4", "34.7%", "3", "0.0%", "25% (10%–40%)", "2.0"]

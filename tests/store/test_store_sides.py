"""Baselines, the figures of a side, and past results."""

import sqlite3

import pytest
from made_sweeps import A100, DEFAULT, EAGER, H200, environment, steps

from effbench.core.cell import Status, Trial
from effbench.core.errors import NothingFoundError
from effbench.core.metrics import METRICS
from effbench.store import sides
from effbench.store.sweeps import find_sweep, sweeps

#: Disturbances of five rounds, of which the last ones are marked.
LAST_TWO = [None, None, None, "throttled", "throttled"]
LAST_THREE = [None, None, "throttled", "busy", "busy"]


def side_of(store, sweep_id, cell=EAGER):
    results = store.results_with_trials(sweep_id)
    (side,) = [result for result in results.values() if result.cell_key == cell.key]
    return side


def figures_of(side, metric):
    return side.figures(METRICS[metric])


def test_every_round_has_its_figure(made, opened):
    figures = {"latency_ms": steps(2.0, 0.01), "kernels": [1, 2, 3, 4, 5]}
    side = side_of(opened, made.sweep({EAGER: figures, DEFAULT: {}}))
    assert side.status == "ok"
    assert figures_of(side, "latency_ms") == dict(enumerate(steps(2.0, 0.01)))
    assert figures_of(side, "kernels") == dict(enumerate([1, 2, 3, 4, 5]))
    assert figures_of(side, "rel_error") == {0: 1e-3}
    assert figures_of(side, "graph_pool_bytes") == {}, "not measured"


def test_a_preparation_that_was_not_repeated_still_counts(made, opened):
    alone = {"compile_cache": "cold", "compile_s": [9.0, None], "first_call_s": [10.0, None]}
    sweep = made.sweep({DEFAULT: alone}, rounds=2)
    (machine,) = opened.environments_of(sweep)
    again = Trial(
        DEFAULT.key,
        0,
        Status.OK,
        attempt=1,
        compile_cache="cold",
    )
    opened.add_trial(sweep, machine.id, again)
    side = side_of(opened, sweep, DEFAULT)
    assert figures_of(side, "compile_cold_s") == {0: 9.0}
    assert figures_of(side, "first_call_s") == {0: 10.0}


def test_sizes_with_an_empty_cache_do_not_stand_for_those_with_a_warm_one(made, opened):
    caches = ["cold", "warm", "warm"]
    sizes = {"compile_cache": caches, "peak_reserved_bytes": [9, 5, 5]}
    side = side_of(opened, made.sweep({DEFAULT: sizes}, rounds=3), DEFAULT)
    assert figures_of(side, "peak_reserved_bytes") == {1: 5, 2: 5}
    assert figures_of(side, "peak_reserved_cold_bytes") == {0: 9}
    cold = side_of(opened, made.sweep({EAGER: sizes | {"compile_cache": "cold"}}, rounds=3))
    assert figures_of(cold, "peak_reserved_bytes") == {}


@pytest.mark.parametrize(
    ("disturbance", "expected", "rounds"),
    [
        (None, None, 5),
        (LAST_TWO, None, 3),
        (LAST_THREE, "throttled", 5),
    ],
)
def test_a_side_says_why_its_times_are_marked(made, opened, disturbance, expected, rounds):
    side = side_of(opened, made.sweep({EAGER: {"disturbance": disturbance}}))
    assert side.disturbance == expected
    assert len(figures_of(side, "latency_ms")) == rounds


def test_a_side_has_the_trials_that_count_for_its_result(made, opened):
    """Two were measured while the host was slower."""
    host = {"gpu_uuid": "GPU-1", "host_ms": [1.0, 1.0, 1.0, 2.0, 2.0]}
    sweep = made.sweep({EAGER: host})
    (result,) = opened.results(sweep)
    assert len(figures_of(side_of(opened, sweep), "latency_ms")) == result.trials == 3


def test_past_results_are_of_one_moment(made, opened, monkeypatch):
    def meanwhile(connection, **options):
        found = sweeps(connection, **options)
        made.sweep([EAGER])  # another process imports a whole sweep
        return found

    monkeypatch.setattr(sides, "sweeps", meanwhile)
    past = opened.past_results(["latency_ms"], (), None)
    assert (past.sweeps, past.cells, past.rows) == ([], {}, [])


def test_a_name_holds_once_for_each_hardware(made, opened):
    """Without a GPU, the CPU is the hardware."""
    machines = {"NVIDIA A100": A100, "EPYC": environment(gpu_name=None, cpu_name="EPYC")}
    expected = {H200: made.sweep([EAGER])}
    opened.set_baseline("main", expected[H200])
    for name, machine in machines.items():
        expected[name] = made.sweep([EAGER], env=machine)
        assert opened.set_baseline("main", expected[name]) == [name]
    known = {baseline.hardware: baseline.sweep_id for baseline in opened.baselines("main")}
    assert known == expected


def test_a_sweep_without_a_trial_cannot_be_a_baseline(made, opened):
    sweep = made.sweep({EAGER: None}, state="interrupted")
    with pytest.raises(NothingFoundError, match="has no trial yet: it cannot be a baseline"):
        opened.set_baseline("main", sweep)


def test_a_statement_does_not_name_every_sweep(made, opened):
    """SQLite's limit is 32,766 parameters."""
    first, *_, last = [made.sweep({EAGER: {}}, rounds=1) for _ in range(6)]
    with opened.reading() as connection:
        raw = connection.connection.driver_connection
        before = raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 4)
        every = sweeps(connection)
        named = find_sweep(connection, first)
        raw.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, before)
    assert [sweep.id for sweep in (every[0], every[-1])] == [last, first]
    assert [sweep.statuses for sweep in (*every, named)] == [{"ok": 1}] * 7
    assert (named.cells, named.trials) == (1, 1)

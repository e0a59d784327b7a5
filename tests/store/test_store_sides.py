"""Baselines, the figures of a side, and the levels of earlier sweeps."""

import pytest
from made_sweeps import A100, DEFAULT, EAGER, H200, a_cell, environment, steps

from effbench.core.cell import Status, Trial
from effbench.core.errors import NothingFoundError
from effbench.store import sides
from effbench.store.sweeps import sweeps

#: Disturbances of five rounds, of which the last ones are marked.
LAST_TWO = [None, None, None, "throttled", "throttled"]
LAST_THREE = [None, None, "throttled", "busy", "busy"]


def side_of(store, sweep_id, cell=EAGER):
    (side,) = [one for (key, _), one in store.sides(sweep_id).items() if key == cell.key]
    return side


def test_every_round_has_its_figure(made, opened):
    figures = {"latency_ms": steps(2.0, 0.01), "kernels": [1, 2, 3, 4, 5]}
    side = side_of(opened, made.sweep({EAGER: figures, DEFAULT: {}}))
    assert side.status == "ok"
    assert side.figures["latency_ms"] == dict(enumerate(steps(2.0, 0.01)))
    assert side.figures["kernels"] == dict(enumerate([1, 2, 3, 4, 5]))
    assert side.figures["rel_error"] == {0: 1e-3}
    assert side.figures["graph_pool_bytes"] == dict.fromkeys(range(5))


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
    assert side.figures["compile_cold_s"] == {0: 9.0}
    assert side.figures["first_call_s"] == {0: 10.0}


def test_sizes_with_an_empty_cache_do_not_stand_for_those_with_a_warm_one(made, opened):
    caches = ["cold", "warm", "warm"]
    sizes = {"compile_cache": caches, "peak_reserved_bytes": [9, 5, 5]}
    side = side_of(opened, made.sweep({DEFAULT: sizes}, rounds=3), DEFAULT)
    assert side.figures["peak_reserved_bytes"] == {1: 5, 2: 5}
    assert side.figures["peak_reserved_cold_bytes"] == {0: 9}
    cold = side_of(opened, made.sweep({EAGER: sizes | {"compile_cache": "cold"}}, rounds=3))
    assert cold.figures["peak_reserved_bytes"] == {}


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
    assert len(side.figures["latency_ms"]) == rounds


def test_a_side_has_the_trials_that_count_for_its_result(made, opened):
    """Two were measured while the host was slower."""
    host = {"gpu_uuid": "GPU-1", "host_ms": [1.0, 1.0, 1.0, 2.0, 2.0]}
    sweep = made.sweep({EAGER: host})
    (result,) = opened.results(sweep)
    assert len(side_of(opened, sweep).figures["latency_ms"]) == result.trials == 3


def test_past_results_are_of_one_moment(made, opened, monkeypatch):
    def meanwhile(connection, **options):
        found = sweeps(connection, **options)
        made.sweep([EAGER])  # another process imports a whole sweep
        return found

    monkeypatch.setattr(sides, "sweeps", meanwhile)
    past = opened.past_results(["latency_ms"])
    assert (past.sweeps, past.cells, past.rows) == ([], {}, [])


def levels(opened, sweep, metrics=("latency_ms",)):
    """(Cell key, metric) -> values of earlier sweeps in the one environment that there is."""
    here = environment().id
    started_at = opened.find_sweep(sweep).started_at
    known = opened.levels(
        sweep,
        [here],
        started_at,
        metrics,
    )
    return {key: by_environment[here] for key, by_environment in known.items()}


def test_levels_are_those_of_earlier_sweeps_in_the_same_environment(made, opened, monkeypatch):
    for level, disturbance in ((1.0, None), (2.0, LAST_TWO), (3.0, None), (99.0, LAST_THREE)):
        figures = {"latency_ms": level, "disturbance": disturbance}
        made.sweep({EAGER: figures, DEFAULT: {"status": "error"}})
    made.sweep({EAGER: {"latency_ms": 9.0}}, env=environment(torch_version="2.14.0"))
    for _ in range(3):
        made.sweep([a_cell(model="other")])  # a database that other jobs fill, too
    last = made.sweep({EAGER: {"latency_ms": 4.0}, DEFAULT: {}})
    assert levels(opened, last, ["latency_ms", "kernels"]) == {
        (EAGER.key, "latency_ms"): pytest.approx([1.0, 2.0, 3.0]),
        (EAGER.key, "kernels"): [12, 12, 12],
    }
    monkeypatch.setattr(sides, "MOST_LEVELS", 3)  # of which one is marked
    assert levels(opened, last) == {(EAGER.key, "latency_ms"): pytest.approx([2.0, 3.0])}


def test_levels_are_those_of_the_sweeps_with_the_same_name(made, opened):
    for level, own in enumerate(("main", None, "pr-7", "main", None), 1):
        swept = made.sweep({EAGER: {"latency_ms": float(level)}}, name=own)
        made.sweep({EAGER: {"latency_ms": 99.0}}, name=f"confirm:{swept}")
    for name, expected in (("main", [1.0, 4.0]), (None, [2.0, 5.0])):
        (latencies,) = levels(opened, made.sweep([EAGER], name=name)).values()
        assert latencies == pytest.approx(expected)
    assert levels(opened, made.sweep([EAGER], name="confirm:x")) == {}, "a re-run has none"


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

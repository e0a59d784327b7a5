"""Baselines, the figures of a side, and the levels of earlier sweeps."""

import pytest
from made_sweeps import H200, a_cell, environment, steps

from effbench.core.cell import Status, Trial
from effbench.core.errors import NothingFoundError
from effbench.store import sides
from effbench.store.sweeps import sweeps

EAGER, DEFAULT = a_cell(), a_cell("default")
A100 = environment(gpu_name="NVIDIA A100")
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
    assert side.figures["kernels"] == {0: 1, 1: 2, 2: 3, 3: 4, 4: 5}
    assert side.figures["first_call_s"] == dict.fromkeys(range(5), 0.5)
    assert side.figures["rel_error"] == {0: 1e-3}
    assert side.figures["graph_pool_bytes"] == dict.fromkeys(range(5))


def test_a_failed_side_has_no_figures(made, opened):
    side = side_of(opened, made.sweep({EAGER: {"status": "oom", "reason": "20 GiB"}}))
    assert side.status == "oom"
    assert side.reason == "20 GiB"
    assert side.figures["latency_ms"] == {}


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


def test_a_sweep_without_trials_has_no_sides(made, opened):
    sweep = made.sweep({EAGER: None})
    assert opened.sides(sweep) == {}
    assert opened.environments_of(sweep) == []
    assert opened.planned(sweep) == [EAGER]


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
    assert past.sweeps == []
    assert past.cells == {}
    assert past.rows == []


def latencies(opened, sweep, metrics=("latency_ms",)):
    """Of the one environment that there is."""
    info = opened.find_sweep(sweep)
    return opened.levels(sweep, [environment().id], info.started_at, metrics)


def test_levels_are_those_of_earlier_sweeps_in_the_same_environment(made, opened, monkeypatch):
    for level in (1.0, 2.0, 3.0):
        made.sweep({EAGER: {"latency_ms": level}, DEFAULT: {"status": "error"}})
    made.sweep({EAGER: {"latency_ms": 9.0}}, env=environment(torch_version="2.14.0"))
    for _ in range(3):
        made.sweep([a_cell(model="other")])  # a database that other jobs fill, too
    last = made.sweep({EAGER: {"latency_ms": 4.0}, DEFAULT: {}})
    env = environment().id
    assert latencies(opened, last, ["latency_ms", "kernels"]) == {
        (EAGER.key, "latency_ms"): {env: pytest.approx([1.0, 2.0, 3.0])},
        (EAGER.key, "kernels"): {env: [12, 12, 12]},
    }
    monkeypatch.setattr(sides, "MOST_LEVELS", 2)
    assert latencies(opened, last) == {(EAGER.key, "latency_ms"): {env: pytest.approx([2.0, 3.0])}}


def test_marked_results_are_no_levels(made, opened):
    for level, disturbance in ((1.0, None), (2.0, LAST_TWO), (3.0, LAST_THREE)):
        made.sweep({EAGER: {"latency_ms": level, "disturbance": disturbance}})
    (levels,) = latencies(opened, made.sweep([EAGER])).values()
    assert levels == {environment().id: pytest.approx([1.0, 2.0])}


def test_levels_are_those_of_the_sweeps_with_the_same_name(made, opened):
    for level, own in enumerate(("main", None, "pr-7", "main", None), 1):
        swept = made.sweep({EAGER: {"latency_ms": float(level)}}, name=own)
        made.sweep({EAGER: {"latency_ms": 99.0}}, name=f"confirm:{swept}")
    for name, expected in (("main", [1.0, 4.0]), (None, [2.0, 5.0]), ("pr-7", [3.0])):
        (levels,) = latencies(opened, made.sweep([EAGER], name=name)).values()
        assert levels == {environment().id: pytest.approx(expected)}
    assert latencies(opened, made.sweep([EAGER], name="confirm:x")) == {}, "a re-run has none"


def test_a_name_holds_once_for_each_hardware(made, opened):
    here, there = made.sweep([EAGER]), made.sweep([EAGER], env=A100)
    assert opened.set_baseline("main", here) == [H200]
    assert opened.set_baseline("main", there) == ["NVIDIA A100"]
    known = {baseline.hardware: baseline.sweep_id for baseline in opened.baselines("main")}
    assert known == {H200: here, "NVIDIA A100": there}


def test_without_a_gpu_a_baseline_is_one_of_the_cpu(made, opened):
    cpu = made.sweep([EAGER], env=environment(gpu_name=None, cpu_name="EPYC 9654"))
    assert opened.set_baseline("main", cpu) == ["EPYC 9654"]


def test_a_sweep_without_a_trial_cannot_be_a_baseline(made, opened):
    sweep = made.sweep({EAGER: None}, state="interrupted")
    with pytest.raises(NothingFoundError, match="has no trial yet: it cannot be a baseline"):
        opened.set_baseline("main", sweep)

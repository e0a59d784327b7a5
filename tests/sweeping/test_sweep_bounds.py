"""How long trials take at least and at most, from the protocol alone."""

from collections import defaultdict
from dataclasses import replace

import pytest
from schedule_parts import trials

from effbench.cell import Cell
from effbench.printable import about, between, duration
from effbench.sweeping.bounds import Bounds, compilation, planned_bounds, trial_bounds
from effbench.sweeping.plan import CellRun, Settings

TARGETS = {
    "eager": "effbench.modes.eager.Eager",
    "default": "effbench.modes.compiled.Compiled",
    "cuda-graph": "effbench.modes.graphs.CudaGraph",
    "default+graph": "effbench.modes.graphs.CompiledCudaGraph",
}


def cell(name="eager", device="cpu", **settings):
    node = {"name": name, "_target_": TARGETS.get(name, "mine.Mode"), **settings}
    return Cell({"name": "m"}, 1, node, "float32", "inference", device)


def bounds_of(*cells, timeout_s=900.0, **protocol):
    settings = Settings.with_defaults(protocol=protocol, timeout_s=timeout_s)
    planned = trials([CellRun(one) for one in cells], settings.protocol.rounds)
    by_device = defaultdict(Bounds)
    for trial in planned:
        by_device[trial.run.cell.device] += planned_bounds(trial, settings)
    return by_device


def test_a_trial_on_the_cpu_has_one_timer_and_one_on_a_gpu_two():
    protocol = Settings.with_defaults().protocol
    on_cpu, on_gpu = (
        trial_bounds(cell(device=device), protocol, is_cold=False) for device in ("cpu", "cuda")
    )
    assert on_cpu.low_s == pytest.approx(0.3 + 0.2 + 0.5)
    assert on_cpu.high_s == pytest.approx(3 + 2 + 5)
    assert on_gpu.low_s == pytest.approx(0.3 + 0.2 + 2 * 0.5 + 0.3 + 0.2)
    assert on_gpu.high_s == pytest.approx(3 + 2 + 5 + 0.3 + 2)
    short = trial_bounds(
        cell(device="cuda"), replace(protocol, budget_s=0.2, profile=False), is_cold=False
    )
    assert short.low_s == pytest.approx(0.3 + 0.2 + 0.2 + 0.3), (
        "the budget limits the least time of each timer"
    )


def test_bounds_grow_with_rounds_budget_and_compilations():
    few, many = bounds_of(cell(), rounds=2)["cpu"], bounds_of(cell(), rounds=6)["cpu"]
    assert (many.low_s, many.high_s) == (
        pytest.approx(3 * few.low_s),
        pytest.approx(3 * few.high_s),
    )
    longer = bounds_of(cell(), rounds=2, budget_s=25.0)["cpu"]
    assert longer.high_s == pytest.approx(few.high_s + 2 * 20)
    once, twice = (
        bounds_of(cell("default"), rounds=4, compilations=number)["cpu"] for number in (1, 2)
    )
    assert twice.high_s > once.high_s and twice.low_s > once.low_s


def test_modes_that_autotune_take_longest():
    autotuned = cell("default", mode="max-autotune")
    by_mode = [
        compilation(one, is_cold=True).high_s
        for one in (cell(), cell("cuda-graph"), cell("default"), autotuned)
    ]
    assert by_mode == sorted(set(by_mode)) and by_mode[0] == 0
    assert compilation(cell("default+graph"), is_cold=True) == compilation(
        cell("default"), is_cold=True
    )
    bucketed = cell("bucketed-graph", inner="max-autotune-no-cudagraphs", torch_compile_max_bs=0)
    assert compilation(bucketed, is_cold=True) == compilation(cell("cuda-graph"), is_cold=True)
    assert (
        compilation(autotuned, is_cold=False).high_s < compilation(autotuned, is_cold=True).high_s
    )


def test_a_trial_is_not_longer_than_its_timeout():
    assert bounds_of(cell(), rounds=3, timeout_s=4.0)["cpu"].high_s == 12
    assert bounds_of(cell(), rounds=3, timeout_s=0.5)["cpu"] == Bounds(1.5, 1.5)


def test_rounds_that_may_end_early_count_only_for_the_upper_bound():
    all_rounds = bounds_of(cell(), rounds=10)["cpu"]
    enough = bounds_of(cell(), rounds=10, enough_interval=0.01)["cpu"]
    assert enough.high_s == all_rounds.high_s and enough.low_s == pytest.approx(
        all_rounds.low_s / 2
    )
    race = bounds_of(cell(), rounds=10, eliminate="latency_ms")["cpu"]
    assert race.low_s == pytest.approx(all_rounds.low_s / 10)


def test_devices_are_separate():
    assert bounds_of(cell(), cell(device="cuda"), rounds=1).keys() == {"cpu", "cuda"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "1 s"),
        (7.4, "7 s"),
        (44, "40 s"),
        (89, "90 s"),
        (95, "2 min"),
        (3600, "60 min"),
        (5400, "1.5 h"),
        (9.9 * 3600, "9.9 h"),
        (20 * 3600, "20 h"),
        (50 * 3600, "2 days"),
    ],
)
def test_durations_are_rounded(seconds, text):
    assert duration(seconds) == text


def test_durations_in_words():
    assert (about(4), about(240)) == ("a few seconds", "about 4 min")
    assert between(50, 240) == "50 s to 4 min"
    assert between(120, 240) == "2 to 4 min"
    assert between(240, 250) == "about 4 min"

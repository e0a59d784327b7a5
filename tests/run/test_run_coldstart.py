"""Cells of phase=coldstart: what their task gets, which of them share a cache, and which GPUs."""

import threading
from collections import Counter
from dataclasses import replace

import pytest
from schedule_parts import CPU, cells, gpus, groups, ok

from effbench.core.cell import Status
from effbench.run.plan import CellRun

SETTINGS = {"change": "none", "processes": 1, "sizes": 1}


def cold_run(cache="none", device="cuda", mode="eager", **settings):
    (cell,) = cells(1, device)
    cold = replace(
        cell,
        phase="coldstart",
        mode={**cell.mode, "name": mode},
        coldstart=SETTINGS | settings,
        cache=cache,
    )
    return CellRun(cold)


def test_all_rounds_and_caches_of_a_cell_use_one_folder(make, tmp_path):
    """A killed trial keeps it, too: its process knows whether the cache is complete."""
    runs = [cold_run(cache) for cache in ("none", "folder", "bundle")]
    folder = tmp_path / "caches" / "e0" / runs[0].cell.key[:32]
    folder.mkdir(parents=True)
    made = make(groups(runs, 3), protocol={"rounds": 3, "compilations": 2})
    assert made.server.tasks == ["coldstart"] * 9
    assert {request["cache_dir"] for request in made.server.sent} == {str(folder)}
    assert folder.exists()


@pytest.mark.parametrize(("cache", "numbers"), [("none", [0, 1, 2]), ("folder", [0, 0, 0])])
def test_processes_without_a_cache_compile_each_time(make, cache, numbers):
    made = make(groups([cold_run(cache)], 3), protocol={"rounds": 3, "compilations": 2})
    assert [request["compilation"] for request in made.server.sent] == numbers


def test_a_cold_start_has_no_pairs(make):
    made = make(groups([cold_run(), cold_run(mode="default")]))
    assert [request["baseline"] for request in made.server.sent] == [None, None]


def test_cells_that_share_a_cache_do_not_run_at_the_same_time(make):
    modes = ("eager", "default")
    runs = [cold_run(cache, mode=mode) for cache in ("none", "folder", "bundle") for mode in modes]
    made = make(slots=gpus(3), history=dict.fromkeys(runs, ()))
    running, beside = Counter(), set()

    def answer(request, env):
        cache = request["cache_dir"]
        with made.progress.lock:
            running[cache] += 1
            assert running[cache] == 1
            beside.add(running.total())
        threading.Event().wait(0.02)
        running[cache] -= 1
        return ok(request)

    made.server.answer = answer
    made.run_groups(groups(runs, 3))
    assert Counter(record.status for record in made.recorded) == {"ok": 6 * 3}
    assert max(beside) == 2


@pytest.mark.parametrize("change", ["none", "bs"])
def test_a_process_gets_one_gpu(make, change):
    made = make(groups([cold_run("folder", change=change)]), slots=gpus(2))
    (request,) = made.server.sent
    assert request["other_gpu"] is None
    assert [slot for slot, *_ in made.progress.order] == ["GPU 0"]


def test_a_change_of_the_gpu_gets_two_gpus_and_locks_both(make):
    runs = [cold_run("folder", change="gpu")]
    made = make(slots=gpus(2)[::-1], history=dict.fromkeys(runs, ()))
    held = []

    def answer(request, env):
        held.extend(slot.try_lock() for slot in made.slots)
        return ok(request)

    made.server.answer = answer
    made.run_groups(groups(runs))
    (request,) = made.server.sent
    (env,) = made.server.envs
    assert (env["CUDA_VISIBLE_DEVICES"], request["other_gpu"]) == ("GPU-0", "GPU-1")
    assert held == [None, None]
    assert [slot for slot, *_ in made.progress.order] == ["GPU 0, GPU 1"]


@pytest.mark.parametrize(
    ("device", "slots", "reason"),
    [
        ("cuda", gpus(1), "coldstart.change=gpu needs 2 GPUs; this machine has 1"),
        ("cpu", [CPU], "coldstart.change=gpu needs device=cuda, not cpu"),
    ],
)
def test_without_a_second_gpu_no_process_starts(make, device, slots, reason):
    made = make(groups([cold_run("folder", device, change="gpu")], 3), slots=slots)
    (record,) = made.recorded
    assert (record.status, record.reason) == (Status.UNSUPPORTED, reason)
    assert made.server.sent == []


@pytest.mark.parametrize(("cold_s", "rounds"), [((2.0, 2.0), 5), ((1.0, 3.0), 10)])
def test_rounds_end_early_once_the_cold_start_is_known_well_enough(make, cold_s, rounds):
    run = cold_run()
    protocol = {"rounds": 10, "enough_interval": 0.01}

    def answer(request, env):
        return ok(request, cold_s=cold_s[request["round"] % 2], compilation=0)

    made = make(groups([run], 10), answer, protocol=protocol)
    assert len(made.recorded) == rounds

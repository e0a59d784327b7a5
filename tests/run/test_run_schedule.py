"""Who runs when, with slots and a fork server that are made up: no process, no torch."""

import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from schedule_parts import (
    CPU,
    PROTOCOL,
    Server,
    Store,
    cell_runs,
    cells,
    gpus,
    groups,
    key_of,
    marked,
    ok,
    trials_of,
    without_result,
)

from effbench.core.cell import Status, Trial
from effbench.core.errors import WorkerError
from effbench.run import pool
from effbench.run.plan import CellRun


def test_every_trial_once_and_in_the_planned_order_on_one_slot(make):
    left = groups(10, 3, 5)
    made = make(left)
    assert [(run, round) for _, run, round in made.progress.order] == trials_of(left)
    assert [(one.cell_key, one.round) for one in made.recorded] == [
        (run.cell.key, round) for run, round in trials_of(left)
    ]


def test_each_slot_sees_its_gpu_and_the_cpu_never_works_beside_one(make):
    beside = set()
    made = make(slots=[replace(gpus(1)[0], cores=[2, 3]), gpus(2)[1], CPU])

    def answer(request, env):
        with made.progress.lock:
            beside.add(frozenset(name == "CPU" for name in made.progress.running))
        return ok(request)

    made.server.answer = answer
    made.run_groups(groups([*cell_runs(4), *cell_runs(4, device="cpu")], 2))
    assert beside == {frozenset({True}), frozenset({False})}
    visible = [env["CUDA_VISIBLE_DEVICES"] for env in made.server.envs]
    cores = [request["cores"] for request in made.server.sent]
    asked = Counter(zip(visible, map(str, cores), strict=True))
    assert asked.keys() == {("GPU-0", "[2, 3]"), ("GPU-1", "None"), ("", "None")}
    assert asked["", "None"] == asked.total() / 2 == 8
    assert Counter(one.gpu_uuid for one in made.recorded)[None] == 8


@pytest.mark.parametrize("status", [status for status in Status if not status.is_measured])
def test_a_failure_drops_the_rounds_that_are_left(make, status):
    bad = cells(2)[1].key

    def answer(request, env):
        return ok(request, status if key_of(request) == bad and request["round"] == 1 else "ok")

    made = make(groups(2, 4), answer)
    assert Counter(one.cell_key for one in made.recorded) == {bad: 2, cells(2)[0].key: 4}


@pytest.mark.parametrize(
    ("fractions", "patiences"),
    [
        ([1.0] * 3 + [0.0] * 3, [2.0] * 3 + [1.0] * 3),
        ([1.0, 1.0, 0.9, 1.0, 1.0, 0.9], [2.0] * 6),
        ([1.0, None, 1.0, None, 1.0, 0.0], [2.0] * 5 + [1.0]),
    ],
    ids=["busy", "sometimes quiet", "busy, and bound by the GPU"],
)
def test_a_sweep_stops_waiting_for_quiet_moments(make, fractions, patiences):
    left = list(fractions)

    def answer(request, env):
        fraction = left.pop(0)
        return marked(request, fraction == 1.0, disturbed_fraction=fraction)

    made = make(groups(6), answer, protocol={**PROTOCOL, "patience": 2.0})
    assert [one["protocol"]["patience"] for one in made.server.sent] == patiences
    assert len(made.progress.notes) == (1.0 in patiences), "it says so once"


def test_trials_learn_how_fast_the_host_was_before(make):
    made = make(groups(2), lambda request, env: ok(request, host_ms=0.04))
    assert [one["host_ms"] for one in made.server.sent] == [None, 0.04]


@pytest.mark.parametrize("recorded", [0, 1])
def test_rounds_take_turns_with_the_compile_caches(make, tmp_path, recorded):
    """A cache that no recorded trial left is removed: with that of a killed one, a warm compilation
    would count as a cold one."""
    protocol = {**PROTOCOL, "rounds": 5, "compilations": 3}
    (run,) = cell_runs(1)
    history = {run: [Trial(run.cell.key, 0, Status.OK, compilation=0)] * recorded}
    found = []

    def answer(request, env):
        cache = Path(request["cache_dir"])
        found.append((request["compilation"], request["is_cold"], cache.exists()))
        cache.mkdir(parents=True, exist_ok=True)
        return ok(request, compilation=request["compilation"])

    caches = tmp_path / "caches" / "e0" / run.cell.key[:32]
    for number in range(3):
        (caches / str(number)).mkdir(parents=True)
    planned = groups([run], 5, history=history)
    make(planned, answer, protocol=protocol, history=history)
    cold = [(number, True, False) for number in range(recorded, 3)]
    assert found == [*cold, (0, False, True), (1, False, True)]


ENOUGH = {
    **PROTOCOL,
    "enough_interval": 0.01,
    "rounds": 10,
    "compilations": 7,
}


def compiled(request, number, kernels):
    return ok(request, compilation=number, kernel_fingerprint=kernels)


@pytest.mark.parametrize(
    ("answer", "rounds"),
    [
        pytest.param(ok, 5, id="quiet"),
        pytest.param(lambda one: ok(one, period_ms=1.0 + one["round"] / 10), 8, id="loud"),
        pytest.param(lambda one: marked(one, one["round"] == 2), 6, id="one is marked"),
        pytest.param(marked, 8, id="marked"),
        pytest.param(lambda one: ok(one, "ok" if one["round"] else "degraded"), 8, id="degraded"),
        pytest.param(lambda one: compiled(one, one["compilation"], "same"), 7, id="compilations"),
        pytest.param(lambda one: compiled(one, one["round"], f"{one['round']}-tuned"), 8, id="k"),
    ],
)
def test_rounds_end_early_for_a_cell_that_is_known_well_enough(make, answer, rounds):
    made = make(groups(1, 8), lambda request, env: answer(request), protocol=ENOUGH)
    assert [one.round for one in made.recorded] == list(range(rounds))


@pytest.mark.parametrize(("before", "rounds"), [(4, [4]), (5, [])])
def test_rounds_before_a_resumption_count(make, before, rounds):
    (run,) = cell_runs(1)
    recorded = [Trial(run.cell.key, round, Status.OK, latency_ms=1.0) for round in range(before)]
    history = {run: recorded}
    made = make(groups([run], 10, history=history), protocol=ENOUGH, history=history)
    assert [one.round for one in made.recorded] == rounds


@pytest.mark.parametrize(("baseline_mode", "expected"), [("eager", None), ("default", "default")])
def test_a_trial_gets_the_mode_that_its_speedup_refers_to(make, baseline_mode, expected):
    model = {"name": "tiny", "module": {"_target_": "torch.nn.Linear"}}
    first = replace(cells(1)[0], model=model)
    modes = [{"name": name, "_target_": "m.M"} for name in ("default", "cuda-graph")]
    runs = [CellRun(replace(first, mode=mode)) for mode in modes]
    made = make(groups(runs), baseline_mode=baseline_mode)
    found = {one["cell"]["mode"]["name"]: one["baseline"] for one in made.server.sent}
    assert found["default"] is None
    assert (found["cuda-graph"] or {}).get("name") == expected


# --- how trials end ---


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ({"code": -63}, "crashed", "killed by signal 63"),
        ({"code": 3}, "crashed", "the process exited with code 3"),
        ({"code": -9, "oom_killed": True}, "oom", "killed by the kernel: host memory ran out"),
    ],
)
def test_a_process_without_a_result(make, outcome, status, reason):
    answer = lambda request, env: without_result(**outcome, log="its log")  # noqa: E731
    (record,) = make(groups(1), answer).recorded
    assert record.status == status
    assert record.reason == f"{reason} (in check)"
    assert record.phase == "check"
    assert record.extra["log"] == "its log"


@pytest.mark.parametrize(
    "wrong",
    [{"status": "fine"}, {"samples": {"latency_ms": ["x"]}}],
    ids=str,
)
def test_a_result_that_is_no_record_is_its_own_trials_crash(make, wrong):
    def answer(request, env):
        outcome = ok(request)
        if request["cell"]["bs"] == 1:
            outcome["result"] |= wrong
        return outcome

    ended = {record.status: record for record in make(groups(2), answer).recorded}
    assert ended.keys() == {"crashed", "ok"}
    assert "invalid trial record" in ended["crashed"].reason


def test_a_trial_that_cannot_be_stored_ends_the_sweep_on_all_slots(make):
    stop, store = threading.Event(), Store()
    store.add_trial = Mock(side_effect=OSError("full"))
    with pytest.raises(OSError, match="full"):
        make(groups(1), store=store, stop=stop)
    assert stop.is_set()


# --- failures of the harness ---


def at_the_device(request):
    """A trial whose process could not use its GPU."""
    return {
        **ok(request, "error", reason="CUDA driver initialization failed", phase="device"),
        "phase": "device",
    }


def not_forked(request):
    return {"failed": "no memory to fork", "phase": None}


@pytest.mark.parametrize(
    "failed",
    [at_the_device, not_forked, lambda request: without_result(code=-9, phase=None)],
    ids=["device", "fork", "before it began"],
)
def test_a_failure_of_the_harness_that_passes_is_retried_and_recorded(make, failed):
    server = Server(lambda request, env: failed(request) if len(server.envs) < 3 else ok(request))
    made = make(groups(1), server=server)
    (record,) = made.recorded
    assert record.status == "ok"
    assert record.extra["harness_retries"] == made.progress.retries
    assert len(made.progress.retries) == 2


@pytest.mark.parametrize(
    ("status", "phase"),
    [("error", "setup"), ("crashed", "check"), ("oom", "build"), ("unsupported", "device")],
)
def test_what_fails_in_code_of_the_user_or_cannot_run_here_is_not_retried(make, status, phase):
    made = make(groups(1), lambda request, env: {**ok(request, status), "phase": phase})
    assert len(made.server.envs) == 1
    assert made.progress.retries == []


DIED = {"died": "the fork server ended (code -9)"}


@pytest.mark.parametrize(
    ("answers", "status", "retries"),
    [
        ([DIED], "ok", 1),
        ([DIED, DIED], "crashed", 1),
        ([DIED, {"failed": "no memory to fork", "phase": None}], "ok", 2),
    ],
    ids=["once", "twice", "then before code of the user"],
)
def test_a_trial_whose_server_dies_is_run_once_more_from_a_separate_one(
    make, monkeypatch, answers, status, retries
):
    left = list(answers)
    server = Server(lambda request, env: dict(left.pop(0)) if left else ok(request))
    monkeypatch.setattr(pool, "ForkServer", lambda **_: server)
    (one,) = make(groups(1), server=server).recorded
    assert one.status == status
    assert len(one.extra["harness_retries"]) == retries
    assert one.extra["harness_retries"][0] == "the fork server ended (code -9) (in check)"
    assert server.closed, "the separate one"


def test_variables_of_a_cell_with_which_no_server_starts_are_its_own_crash(make, monkeypatch):
    monkeypatch.setattr(pool, "ForkServer", Mock(side_effect=WorkerError("not ready")))
    planned = groups([*cell_runs(1, env={"LD_PRELOAD": "x"}), *cell_runs(1)])
    ended = sorted((one.status, one.reason) for one in make(planned).recorded)
    assert ended == [("crashed", "not ready; tried 3 more times"), ("ok", None)]


@pytest.mark.parametrize("settings", [{"isolation": "spawn"}, {}])
def test_fresh_interpreters_for_spawn_and_for_cells_with_variables(make, started, settings):
    env = {} if settings else {"FOO": "1"}
    shared = make(groups(cell_runs(1, env=env)), **settings).server
    (server,) = started
    assert server.options == {"preload": False, "env": env}
    assert server.envs == [{"CUDA_VISIBLE_DEVICES": "GPU-0", **env}]
    assert server.closed
    assert not shared.envs


# --- locks ---


def start_waiting(made, left):
    """Run these trials in a thread, which waits for a lock."""
    runner = threading.Thread(target=made.run_groups, args=(left,))
    runner.start()
    assert made.progress.waiting_now.wait(20)
    return runner


def test_a_device_in_use_is_waited_for_and_others_are_not(make):
    made = make(slots=gpus(2))
    with made.slots[0].try_lock():
        runner = start_waiting(made, groups(4))
        while len(made.recorded) < 3:  # one trial is with the slot that waits
            assert runner.is_alive()
            threading.Event().wait(0.01)
    runner.join(20)
    assert Counter(slot for slot, *_ in made.progress.order) == {"GPU 1": 3, "GPU 0": 1}
    assert made.progress.waited == ["GPU 0"], "reported once"


def test_waiting_for_a_device_ends_some_time(make):
    made = make(executor={"lock_timeout_s": 0.05})
    refused = pytest.raises(WorkerError, match=r"GPU 0 was in use .*resume=last")
    with made.slots[0].try_lock(), refused:
        made.run_groups(groups(1))


def test_a_stop_ends_waiting_for_a_device(make):
    stop = threading.Event()
    made = make(stop=stop)
    with made.slots[0].try_lock():
        runner = start_waiting(made, groups(1))
        stop.set()
        runner.join(20)
    assert runner.is_alive() is False
    assert made.recorded == []


def test_the_lock_is_held_while_a_trial_runs_and_not_after(make):
    seen = []

    def answer(request, env):
        seen.append(made.slots[0].try_lock())
        return ok(request)

    made = make(answer=answer)
    made.run_groups(groups(2))
    assert seen == [None, None], "held"
    made.slots[0].try_lock().close()

"""Trials that use several devices: which device each rank gets, how all ranks end together, and
which of them tells how the trial ended."""

import os
import threading
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from schedule_parts import (
    CPU,
    cell_runs,
    cells,
    gpus,
    groups,
    ok,
    without_result,
)

from effbench.core.cores import physical_cores
from effbench.core.message import TaskEnd, TrialRequest
from effbench.run import ranks
from effbench.run.client import ForkServer, ServerRequest
from effbench.run.devices import Slot
from effbench.run.plan import CellRun
from effbench.run.ranks import Rank, RankProcesses

CORES = len(physical_cores(os.sched_getaffinity(0)))


def split_runs(parallel="tp2", device="cuda"):
    return [CellRun(replace(cell, parallel=parallel)) for cell in cells(1, device)]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(ranks, "GRACE_S", 0.5)
    monkeypatch.setattr(ranks, "POLL_S", 0.01)


# --- devices ---


def test_each_rank_has_a_gpu_cores_and_a_cache_of_its_own(make):
    slots = [replace(slot, cores=[slot.index]) for slot in gpus(2)]
    made = make(groups(split_runs()), slots=slots)
    leader, other = sorted(made.server.sent, key=lambda request: request["rank"]["rank"])
    assert [leader["gpu_uuid"], other["gpu_uuid"]] == ["GPU-0", "GPU-1"]
    assert [leader["cores"], other["cores"]] == [[0], [1]]
    assert other["cache_dir"] == f"{leader['cache_dir']}/rank1"
    assert leader["rank"]["size"] == other["rank"]["size"] == 2
    assert leader["rank"]["folder"] == other["rank"]["folder"]
    assert not Path(leader["rank"]["folder"]).exists(), "nothing is left behind"
    visible = [env["CUDA_VISIBLE_DEVICES"] for env in made.server.envs]
    assert sorted(visible) == ["GPU-0,GPU-1", "GPU-1,GPU-0"]
    (record,) = made.recorded
    assert (record.status, record.gpu_uuid) == ("ok", "GPU-0")
    assert [slot for slot, *_ in made.progress.order] == ["GPU 0, GPU 1"]


@pytest.mark.skipif(CORES < 2, reason="needs two physical cores")
def test_ranks_on_the_cpu_divide_its_cores(make):
    made = make(groups(split_runs(device="cpu")), slots=[CPU])
    first, second = (request["cores"] for request in made.server.sent)
    assert len(first) == len(second) > 0
    assert set(first).isdisjoint(second)
    assert {env["CUDA_VISIBLE_DEVICES"] for env in made.server.envs} == {""}


@pytest.mark.parametrize(
    ("parallel", "device", "slots", "reason"),
    [
        ("tp4", "cuda", gpus(3), "parallel=tp4 needs 4 GPUs; this machine has 3"),
        ("tp2", "cuda", [CPU], "parallel=tp2 needs 2 GPUs; this machine has 0"),
        ("ddp9999", "cpu", [CPU], f"needs 9999 physical cores; this machine has {CORES}"),
    ],
)
def test_without_a_device_for_each_rank_no_process_starts(make, parallel, device, slots, reason):
    made = make(groups(split_runs(parallel, device), 3), slots=slots)
    (record,) = made.recorded
    assert record.status == "unsupported"
    assert reason in record.reason
    assert made.server.sent == []


def test_several_gpus_come_together_while_other_cells_run_on_the_others(make):
    used, beside, held = Counter(), set(), []
    runs = [*cell_runs(6), *split_runs(), *split_runs("tp3")]
    made = make(slots=gpus(3), history=dict.fromkeys(runs, ()))

    def answer(request, env):
        uuid = request["gpu_uuid"]
        with made.progress.lock:
            used[uuid] += 1
            assert used[uuid] == 1, "one trial at a time on a GPU"
            if request["rank"] is None and any(", " in slot for slot in made.progress.running):
                beside.add(uuid)
        held.append(made.slots[int(uuid[-1])].try_lock())
        threading.Event().wait(0.02)
        used[uuid] -= 1
        return ok(request)

    made.server.answer = answer
    made.run_groups(groups(runs, 3))
    assert Counter(record.status for record in made.recorded) == {"ok": 8 * 3}
    assert set(held) == {None}, "all locks are held"
    assert beside, "a third GPU is used"


def test_all_processes_lock_several_gpus_in_the_same_order(make):
    names = ("GPU-c", "GPU-a", "GPU-b")
    slot = Slot("", "cuda", ranks=[Slot(name, "cuda", uuid=name) for name in names])
    assert [device.uuid for device in slot.devices] == sorted(names)


def test_a_gpu_that_another_effbench_uses_is_waited_for(make):
    runs = split_runs()
    made = make(slots=gpus(2), history=dict.fromkeys(runs, ()))
    with made.slots[1].try_lock():
        runner = threading.Thread(target=made.run_groups, args=(groups(runs),))
        runner.start()
        assert made.progress.waiting_now.wait(20)
        assert made.server.sent == []
    runner.join(20)
    assert made.progress.waited == ["GPU 1"]
    assert [record.status for record in made.recorded] == ["ok"]


# --- which rank tells how the trial ended ---


def ends(status, reason, **more):
    return lambda request: ok(request, status, reason=reason, **more)


def dies(request):
    return without_result(code=-9, log="its log")


def hangs(request):
    return None


LOST = ends("error", "in timing: Connection closed by peer", extra={"lost_rank": 1})
RAISES = ends("error", "in check: ValueError: bad (net.py:3 in forward)")


@pytest.mark.parametrize(
    ("leader", "other", "status", "reason"),
    [
        (ok, ok, "ok", None),
        (ok, hangs, "ok", None),
        (ok, dies, "ok", None),
        (ok, LOST, "ok", None),
        (hangs, dies, "crashed", "rank 1 of 2: killed by SIGKILL (in check)"),
        (dies, hangs, "crashed", "rank 0 of 2: killed by SIGKILL (in check)"),
        (LOST, dies, "crashed", "rank 1 of 2: killed by SIGKILL (in check)"),
        (LOST, LOST, "error", "in timing: Connection closed by peer"),
        (LOST, ends("oom", "in check: x"), "oom", "rank 1 of 2: in check: x"),
        (ok, RAISES, "ok", None),
        (RAISES, RAISES, "error", "in check: ValueError: bad (net.py:3 in forward)"),
        (hangs, RAISES, "error", "rank 1 of 2: in check: ValueError: bad (net.py:3 in forward)"),
        (RAISES, hangs, "error", "rank 0 of 2: in check: ValueError: bad (net.py:3 in forward)"),
        (ends("unsupported", "no plan"), hangs, "unsupported", "no plan"),
        (hangs, hangs, "timeout", "not done after 0.8 s (in check)"),
    ],
)
def test_the_first_cause_is_that_of_the_trial(make, leader, other, status, reason):
    play = (leader, other)

    def answer(request, env):
        return play[request["rank"]["rank"]](request)

    made = make(groups(split_runs()), answer, slots=gpus(2), timeout_s=0.8)
    (record,) = made.recorded
    assert (record.status, record.reason) == (status, reason)


@pytest.mark.parametrize(("codes", "reason"), [((-9, -9), "killed by SIGKILL"), ((3, 0), "code 3")])
def test_ranks_that_end_at_the_deadline_are_not_late(codes, reason):
    both = []
    for number, code in enumerate(codes):
        task = ServerRequest(str(number))
        task.end(TaskEnd(code=code))
        both.append(Rank(number, 2, task, "/caches"))
    processes = RankProcesses(None, both)
    processes.time_out(1.0)
    record = processes.decisive().record("key", 0)
    assert record.status == "crashed"
    assert reason in record.reason


def test_a_failure_of_the_harness_is_retried_for_all_ranks_together(make):
    folders = []

    def answer(request, env):
        folders.append(request["rank"]["folder"])
        if len(folders) > 2:
            return ok(request)
        if request["rank"]["rank"] == 0:
            return None
        return {**ok(request, "error", reason="no driver", phase="device"), "phase": "device"}

    made = make(groups(split_runs()), answer, slots=gpus(2))
    (record,) = made.recorded
    assert record.status == "ok"
    assert record.extra["harness_retries"] == ["rank 1 of 2: no driver"]
    assert sorted(Counter(folders).values()) == [2, 2], "another folder for each attempt"


def test_a_stop_ends_all_ranks(make):
    stop = threading.Event()
    begun = threading.Barrier(2, stop.set)

    def answer(request, env):
        begun.wait(20)

    made = make(groups(split_runs()), answer, slots=gpus(2), stop=stop)
    assert made.recorded == []
    assert len(made.server.killed) == 2


# --- real processes ---

#: Runs the code of its rank, in a file of that name.
TASK = """
import faulthandler, signal

def run_task(payload, pipe):
    faulthandler.register(signal.SIGUSR1)
    pipe.send(phase="check")
    path, code = payload["protocol"]["play"][payload["rank"]["rank"]]
    exec(compile(code, path, "exec"), {})
"""
WAITS = ("/x/torch/distributed/c10d.py", "import time\ntime.sleep(1000)")


class PlayServer(ForkServer):
    """Its trials are of the module `play`."""

    def submit(self, task, payload, env=None):
        return super().submit("play", payload, env)


@pytest.fixture(scope="module")
def play_server(tmp_path_factory):
    """A server whose package `worker` has a module of the tests."""
    folder = tmp_path_factory.mktemp("play")
    (folder / "play.py").write_text(TASK)
    hook = f"import effbench.worker; effbench.worker.__path__.append({str(folder)!r})\n"
    (folder / "sitecustomize.py").write_text(hook)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with closing(PlayServer(preload=False)) as server:
            server.wait_ready()
            yield server


SIGNAL = "import os, signal, time\nos.kill(os.getpid(), signal.{})\ntime.sleep(1000)"


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        (SIGNAL.format("SIGKILL"), "crashed", "rank 1 of 2: killed by SIGKILL (in check)"),
        ("import os\nos._exit(0)", "crashed", "rank 1 of 2: the process exited with code 0"),
        (
            SIGNAL.format("SIGSTOP"),
            "timeout",
            "not done after 1 s (in check): rank 1 of 2 did not arrive; it is stopped",
        ),
        (
            "import signal, time\nsignal.signal(signal.SIGUSR1, signal.SIG_DFL)\ntime.sleep(1000)",
            "timeout",
            "not done after 1 s (in check)",
        ),
        (
            "import time\ndef forward():\n    time.sleep(1000)\nforward()",
            "timeout",
            "rank 1 of 2 did not arrive; it is at net.py:3 in forward",
        ),
        (
            f"exec(compile({WAITS[1]!r}, '/x/torch/_inductor/graph.py', 'exec'))",
            "timeout",
            "rank 1 of 2 did not arrive; it is compiling",
        ),
    ],
    ids=["killed", "exits", "stopped", "has no stack", "hangs", "compiles"],
)
def test_a_rank_that_does_not_arrive_ends_the_trial_and_nothing_is_left(
    play_server, tmp_path, wait_gone, code, status, reason
):
    (run,) = split_runs(device="cpu")
    play = [WAITS, (str(Path("net.py").absolute()), code)]
    request = TrialRequest(run.cell.params(), {"play": play}, cache_dir=str(tmp_path / "cache"))
    slot = replace(CPU, ranks=[CPU, CPU])
    both = RankProcesses.start(play_server, request, slot, {}, str(tmp_path))
    assert "check" in list(both.phases(1.0))
    record = both.decisive().record(run.cell.key, 0)
    assert record.status == status
    assert reason in record.reason
    for rank in both.ranks:
        wait_gone(rank.task.pid)

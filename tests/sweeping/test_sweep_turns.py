"""Trials that prepare ahead: who has its turn, who stands still, and what their records say."""

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from schedule_parts import cell_runs, gpus, ok, trials
from whole_sweeps import results_of, trials_of

from effbench.cell import Status, Trial
from effbench.errors import WorkerError
from effbench.message import TURN_PHASE
from effbench.sweeping import devices
from effbench.sweeping.client import Request
from effbench.sweeping.plan import LOST
from effbench.sweeping.progress import Progress
from effbench.sweeping.turns import Turns

#: A process in a session of its own with a child; prints the child's pid.
FAMILY = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""


def state(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def becomes(pids, stopped):
    deadline = time.monotonic() + 10
    while any((state(pid) == "T") != stopped for pid in pids):
        assert time.monotonic() < deadline, [state(pid) for pid in pids]
        time.sleep(0.01)
    return True


@pytest.fixture
def families():
    """Two requests that run, each with the pids of its processes."""
    made = []
    for name in "ab":
        process = subprocess.Popen(
            [sys.executable, "-c", FAMILY],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        request = Request(name, lambda request, phase: None, pid=process.pid)
        made.append((request, [process.pid, int(process.stdout.readline())], process))
    yield [(request, pids) for request, pids, _ in made]
    for _, (_, child), process in made:
        process.kill()
        process.wait()
        subprocess.run(["kill", "-9", str(child)], check=False)
        process.stdout.close()


def test_while_one_has_its_turn_the_other_stands_still(families):
    (first, one), (second, other) = families
    turns = Turns(gpus(1)[0], is_shared=True)
    for request in (first, second):
        turns.phase(request, "build")
    turns.phase(first, TURN_PHASE)
    assert becomes([*one, *other], stopped=False), "it waits for its turn"
    turns.phase(first, "timing")
    assert becomes(other, stopped=True)
    assert becomes(one, stopped=False)
    turns.phase(first, "check")
    assert becomes(other, stopped=True)
    time.sleep(0.1)
    turns.ended(first)
    assert becomes(other, stopped=False)
    assert second.waits_since is None
    assert second.waited_s >= 0.1
    turns.phase(second, TURN_PHASE)
    turns.phase(second, "timing")
    first.done.set()
    turns.phase(first, "check")  # a message that arrives late
    assert becomes([*one, *other], stopped=False)


def test_a_trial_that_starts_during_anothers_turn_stands_still(families):
    (first, one), (second, other) = families
    turns = Turns(gpus(1)[0], is_shared=True)
    turns.phase(first, TURN_PHASE)
    turns.phase(first, "timing")
    turns.phase(second, "device")
    assert becomes(other, stopped=True)
    turns.ended(Request("c", lambda request, phase: None))
    assert becomes(other, stopped=True), "the first one still has its turn"
    turns.ended(first)
    assert becomes([*one, *other], stopped=False)


def test_one_that_dies_while_it_waits_has_waited_until_then():
    turns, request = Turns(gpus(1)[0], is_shared=True), Request("a", lambda request, phase: None)
    turns.phase(request, TURN_PHASE)
    time.sleep(0.1)
    turns.ended(request)
    assert request.waited_s >= 0.1


def test_trials_of_other_servers_of_the_sweep_are_no_foreign_processes(families):
    (_, (server, trial)), _ = families
    ask = (
        "import sys; from effbench import processes; print(processes.siblings({*map(int,"
        " sys.argv[1:])}))"
    )
    other = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
    pids = map(str, (trial, server, os.getpid(), 1))
    done = subprocess.run(
        [sys.executable, "-c", other, ask, *pids], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{{{trial}}}\n"


def test_who_must_be_alone_waits_for_the_others_and_keeps_new_ones_out():
    turns, stop, order = Turns(gpus(1)[0], is_shared=True), threading.Event(), []

    def join(name, alone):
        with turns.joined(30, stop, lambda: None, alone) as is_held:
            order.append((name, is_held, turns.users))

    with turns.joined(30, stop, lambda: None), turns.joined(30, stop, lambda: None):
        loner = threading.Thread(target=join, args=("alone", True))
        loner.start()
        while not turns.loners:
            time.sleep(0.001)
        late = threading.Thread(target=join, args=("late", False))
        late.start()
        time.sleep(0.05)
        assert order == []
    loner.join(30)
    late.join(30)
    assert order == [("alone", True, 1), ("late", True, 1)]
    assert (turns.users, turns.loners) == (0, 0)


def test_other_sweeps_wait_until_no_trial_of_this_one_runs():
    stop = threading.Event()
    ours, theirs = (Turns(gpus(1)[0], is_shared=True) for _ in range(2))
    with ours.joined(30, stop, lambda: None) as is_held:
        assert is_held
        with ours.joined(30, stop, lambda: None) as is_held:
            assert is_held
        with theirs.joined(30, stop, stop.set) as is_held:
            assert not is_held
    stop.clear()
    with theirs.joined(30, stop, stop.set) as is_held:
        assert is_held


def test_all_trials_of_a_slot_stop_waiting_for_another_sweep_at_the_same_time(monkeypatch):
    monkeypatch.setattr(devices, "POLL_S", 0.01)

    def join():
        with contextlib.suppress(WorkerError), turns.joined(0.3, stop, lambda: None) as is_held:
            assert not is_held

    with Turns(gpus(1)[0], is_shared=True).joined(30, threading.Event(), lambda: None):
        for _ in range(3):
            turns, stop, start = (
                Turns(gpus(1)[0], is_shared=True),
                threading.Event(),
                time.monotonic(),
            )
            threads = [threading.Thread(target=join) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert time.monotonic() - start < 1, "not 0.3 s each"


@pytest.mark.parametrize(
    ("reason", "status", "runs"),
    [
        ("killed by the kernel: host memory ran out", "oom", 2),
        ("in check: RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR", "error", 2),
        (
            (
                "in check: RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"
                " cublasCreate"
            ),
            "error",
            2,
        ),
        ("in check: ZeroDivisionError: division by zero", "error", 1),
    ],
)
def test_a_trial_that_may_lack_memory_runs_again_alone(make, reason, status, runs):
    def answer(request, env):
        seen.append(request["attempt"])
        return ok(request, status, reason=reason) if len(seen) == 1 else ok(request)

    seen = []
    made = make(trials(1), answer, executor={"ahead": 1})
    assert [record.status for record in made.recorded] == ["ok" if runs == 2 else status]
    assert len(seen) == runs and len(made.progress.retries) == runs - 1
    seen.clear()
    made = make(trials(1), answer)
    assert [record.status for record in made.recorded] == [status], (
        "no other trial could have used the memory"
    )


def test_if_a_thread_cannot_start_the_others_end(make, monkeypatch):
    def start(thread):
        if thread.name == "effbench-GPU 0-1":
            raise RuntimeError("can't start new thread")
        plain(thread)

    plain, stop = threading.Thread.start, threading.Event()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        make(trials(3), executor={"ahead": 1}, stop=stop)
    assert stop.is_set()


def test_a_lost_trial_is_repeated_without_others_because_it_has_no_times(make):
    (run,) = cell_runs(1)
    history = {run: [Trial(run.cell.key, 0, Status.CRASHED, extra={LOST: "7"})]}
    again = trials([run], 2, history=history)
    extra = {"phase_seconds": {"build": 1.0}}
    answer = lambda request, env: ok(request, build_s=1.0, extra=extra)  # noqa: E731
    made = make(again, answer, history=history, executor={"ahead": 1})
    assert [request["is_ahead"] for request in made.server.sent] == [False, True]
    assert [record.overhead_s is None for record in made.recorded] == [False, True]


def test_the_time_that_a_trial_stands_still_is_not_its_own(make, monkeypatch):
    monkeypatch.setattr(Request, "wait", lambda request, waits: setattr(request, "waited_s", 100.0))
    (record,) = make(trials(1), executor={"ahead": 1}).recorded
    assert record.wall_s < 0


def test_a_sweep_that_prepares_ahead(cli, monkeypatch):
    seen, lock, plain = [], threading.Lock(), Progress.phase

    def phase(progress, trial, phase):
        with lock:
            seen.append((trial, phase))
        plain(progress, trial, phase)

    monkeypatch.setattr(Progress, "phase", phase)
    done = cli.sweep(
        "model=tiny", "bs=1,2,3", "mode=eager", "protocol.rounds=3", "executor.ahead=2"
    )
    assert done.code == 0, done
    assert {row["status"] for row in results_of(cli.db)} == {"ok"}
    found = trials_of(cli.db)
    assert len(found) == 9
    for trial in found:
        is_first = trial["round"] == 0
        assert (trial["build_s"] is not None) == (trial["first_call_s"] is not None) == is_first
        assert trial["latency_ms"] > 0
    timed = [trial for trial, phase in seen if phase in ("timing", "facts")]
    assert len(timed) == 18
    assert timed[::2] == timed[1::2], "none begins to be timed before the one before it has been"
    running = itertools.accumulate({"device": 1, "facts": -1}.get(phase, 0) for _, phase in seen)
    assert max(running) > 1, "none begins before the one before it has ended"

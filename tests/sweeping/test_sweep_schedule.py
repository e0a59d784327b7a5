"""Who runs when, with slots and a fork server that are made up: no process, no torch."""

import errno
import os
import threading
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import filelock
import pytest
from schedule_parts import (
    PROTOCOL,
    Server,
    cell_runs,
    cells,
    gpus,
    key_of,
    marked,
    ok,
    pool_of,
    trials,
    without_result,
)

from effbench.cell import Status, Trial
from effbench.errors import ConfigError, WorkerError
from effbench.store.trials import HostSpeeds
from effbench.sweeping import client, pool
from effbench.sweeping.client import ForkServer
from effbench.sweeping.devices import Slot
from effbench.sweeping.interpreters import HERE
from effbench.sweeping.plan import CellRun

CPU = Slot("CPU", "cpu")


def test_every_trial_once_and_in_the_planned_order_on_one_slot(make):
    left = trials(10, 3, 5)
    made = make(left)
    assert [trial for _, trial in made.progress.order] == left
    assert [(one.cell_key, one.round) for one in made.recorded] == [
        (t.run.cell.key, t.round) for t in left
    ]


def test_samples_of_a_recorded_trial_are_not_kept(make):
    made = make(trials(1, 2), lambda request, env: ok(request, samples={"latency_ms": [1.0]}))
    assert [one.samples for one in made.recorded] == [{"latency_ms": [1.0]}] * 2
    assert [one.samples for (kept,) in [made.history.values()] for one in kept] == [{}, {}]


def test_each_slot_sees_its_gpu_and_the_cpu_never_works_beside_one(make):
    beside = set()
    made = make(slots=[*gpus(2), CPU])

    def answer(request, env):
        with made.progress.lock:
            beside.add(
                frozenset("cpu" if name == "CPU" else "cuda" for name in made.progress.running)
            )
        return ok(request)

    made.server.answer = answer
    made.run(trials([*cell_runs(4), *cell_runs(4, device="cpu")], 2))
    assert len(made.recorded) == 16
    assert beside == {frozenset({"cpu"}), frozenset({"cuda"})}
    assert Counter(env["CUDA_VISIBLE_DEVICES"] for env in made.server.envs)[""] == 8
    assert all(
        (slot == "CPU") == (trial.run.cell.device == "cpu") for slot, trial in made.progress.order
    )
    assert {one.gpu_uuid for one in made.recorded} <= {None, "GPU-0", "GPU-1"}
    assert len(make(trials(1), slots=[CPU]).recorded) == 1, "its trial reports what is missing"


@pytest.mark.parametrize("status", [status for status in Status if not status.is_measured])
def test_a_failure_drops_the_rounds_that_are_left(make, status):
    bad = cells(2)[1].key

    def answer(request, env):
        return ok(request, status if key_of(request) == bad and request["round"] == 1 else "ok")

    made = make(trials(2, 4), answer)
    assert Counter(one.cell_key for one in made.recorded) == {bad: 2, cells(2)[0].key: 4}
    assert made.progress.changes == [-2]


def test_a_marked_trial_is_not_measured_again(make):
    """Its sweep would take longer, and a host is rarely quiet a minute later."""
    made = make(trials(2, 2), lambda request, env: marked(request))
    assert [(one.round, one.attempt) for one in made.recorded] == [(0, 0), (0, 0), (1, 0), (1, 0)]
    assert made.progress.changes == [0] * len(made.progress.changes)


def disturbed(request, fraction, **values):
    """A trial that spent this fraction of its time on a disturbed host; it is marked if that was
    all of it."""
    return marked(request, fraction == 1.0, disturbed_fraction=fraction, **values)


def by_order(fractions):
    """Answers the n-th trial with the n-th of these fractions; the last one stands for all
    others."""
    left = list(fractions)
    return lambda request, env: disturbed(request, left.pop(0) if len(left) > 1 else left[0])


PATIENT = {**PROTOCOL, "patience": 2.0}


class TestWaiting:
    """A sweep waits for undisturbed moments, until there has been none for three trials in a
    row."""

    BUSY_FOR_GOOD: ClassVar = [1.0, 1.0, 1.0, 1.0]

    @pytest.mark.parametrize(
        ("fractions", "patiences"),
        [
            ([0.0], [2.0] * 6),
            ([0.99], [2.0] * 6),
            (BUSY_FOR_GOOD, [2.0] * 3 + [1.0] * 3),
            ([1.0, 1.0, 0.9, 1.0, 1.0, 0.9], [2.0] * 6),
            ([None], [2.0] * 6),
        ],
        ids=["quiet", "hardly quiet", "busy", "sometimes quiet", "bound by the GPU"],
    )
    def test_the_patience_of_each_trial(self, make, fractions, patiences):
        made = make(trials(6), by_order(fractions), protocol=PATIENT)
        assert [one["protocol"]["patience"] for one in made.server.sent] == patiences

    def test_a_quiet_moment_afterwards_changes_nothing(self, make):
        made = make(trials(4, 2), by_order([1.0, 1.0, 1.0, 0.0]), protocol=PATIENT)
        assert {one["protocol"]["patience"] for one in made.server.sent[3:]} == {1.0}
        assert len(made.progress.notes) == 1

    def test_it_says_so_once_and_what_to_do(self, make):
        made = make(trials(4, 3), by_order(self.BUSY_FOR_GOOD), protocol=PATIENT)
        (note,) = made.progress.notes
        assert note.startswith(
            "The host is busy: 3 trials in a row had no undisturbed moment (load "
        )
        assert "no longer waits" in note
        assert "close other programs or use a quieter machine" in note

    @pytest.mark.parametrize(("device", "is_said"), [("cpu", True), ("cuda", False)])
    def test_fewer_threads_help_on_the_cpu_only(self, make, device, is_said):
        slot = CPU if device == "cpu" else gpus(1)[0]
        planned = trials(cell_runs(3, device=device))
        (note,) = make(
            planned, by_order(self.BUSY_FOR_GOOD), slots=[slot], protocol=PATIENT
        ).progress.notes
        assert ("threads=1" in note) is is_said

    def test_trials_whose_speed_does_not_depend_on_the_host_do_not_interrupt_a_row(self, make):
        made = make(trials(6), by_order([1.0, None, 1.0, None, 1.0, 0.0]), protocol=PATIENT)
        assert len(made.progress.notes) == 1

    def test_it_was_quiet_enough(self, make):
        assert (
            make(trials(4, 2), by_order([1.0, 1.0, 0.5, 0.0]), protocol=PATIENT).progress.notes
            == []
        )


class TestKnownSpeeds:
    """Each trial learns how fast the host was in earlier ones, of this sweep and before it."""

    def asked(self, make, answer, device="cuda", before=None, count=3):
        slot = CPU if device == "cpu" else gpus(1)[0]
        host_speeds = {} if before is None else {HERE: before}
        planned = trials(cell_runs(count, device=device))
        made = make(planned, answer, slots=[slot], host_speeds=host_speeds)
        return [(one["host_ms"], one["host_high_ms"]) for one in made.server.sent]

    def test_the_first_trial_of_all_knows_nothing(self, make):
        assert self.asked(make, lambda request, env: ok(request), count=1) == [(None, None)]

    def test_trials_on_a_gpu_tell_the_quietest_moments(self, make):
        answer = lambda request, env: ok(request, host_ms=0.04, host_high_ms=0.06)  # noqa: E731
        assert self.asked(make, answer) == [(None, None), (0.04, None), (0.04, None)]

    def test_trials_on_the_cpu_tell_the_slower_moments(self, make):
        answer = lambda request, env: ok(request, host_ms=0.04, host_high_ms=0.06)  # noqa: E731
        assert self.asked(make, answer, "cpu") == [(None, None), (None, 0.06), (None, 0.06)]

    def test_marked_trials_on_the_cpu_tell_nothing(self, make):
        answer = lambda request, env: marked(request, host_ms=0.04, host_high_ms=0.06)  # noqa: E731
        assert self.asked(make, answer, "cpu") == [(None, None)] * 3

    def test_earlier_sweeps_are_known(self, make):
        before = HostSpeeds(quiet=[0.03], high=[0.05])
        assert self.asked(make, lambda request, env: ok(request), before=before, count=1) == [
            (0.03, 0.05)
        ]


ENOUGH = {**PROTOCOL, "enough_interval": 0.01, "rounds": 10, "compilations": 7}


@pytest.mark.parametrize(
    ("rounds", "compilations", "used"), [(1, 3, [0]), (3, 2, [0, 1, 0]), (5, 3, [0, 1, 2, 0, 1])]
)
def test_rounds_take_turns_with_the_compile_caches_also_when_resumed(
    make, rounds, compilations, used
):
    protocol = {**PROTOCOL, "rounds": rounds, "compilations": compilations}
    for history in ({}, {run: [Trial(run.cell.key, 0, Status.OK)] for run in cell_runs(1)}):
        left = list(enumerate(used))[len(history) :]
        planned = trials(cell_runs(1), rounds, history=history)
        answer = lambda request, env: ok(request, compilation=request["compilation"])  # noqa: E731
        asked = make(planned, answer, protocol=protocol, history=history).server.sent
        sent = [(one["round"], one["compilation"], Path(one["cache_dir"]).name) for one in asked]
        assert sent == [(round, number, str(number)) for round, number in left]
        numbers = [one["compilation"] for one in asked]
        assert [one["is_cold"] for one in asked] == [
            number not in numbers[:i] for i, number in enumerate(numbers)
        ]


def compiled(number, kernels):
    return {"compilation": number, "kernel_fingerprint": kernels}


class TestEnoughRounds:
    """Rounds end early for a cell that is known well enough."""

    answers: ClassVar = {
        "quiet": (lambda request: ok(request), 5),
        "loud": (lambda request: ok(request, latency_ms=1.0 + request["round"] / 10), 8),
        "period": (lambda request: ok(request, period_ms=1.0 + request["round"] / 10), 8),
        "one marked round is set aside": (
            lambda request: marked(request, request["round"] == 2),
            6,
        ),
        "marked": (lambda request: marked(request), 8),
        "degraded": (lambda request: ok(request, "ok" if request["round"] else "degraded"), 8),
        "each compilation once": (
            lambda request: ok(request, **compiled(request["compilation"], "same")),
            7,
        ),
        "kernels": (
            lambda request: ok(request, **compiled(request["round"], f"{request['round']}-tuned")),
            8,
        ),
    }

    @pytest.mark.parametrize(("answer", "rounds"), answers.values(), ids=answers)
    def test_rounds(self, make, answer, rounds):
        made = make(trials(1, 8), lambda request, env: answer(request), protocol=ENOUGH)
        assert [one.round for one in made.recorded] == list(range(rounds))
        assert sum(made.progress.changes) == rounds - 8

    @pytest.mark.parametrize(("before", "rounds"), [(4, [4]), (5, [])])
    def test_rounds_before_a_resumption_count(self, make, before, rounds):
        (run,) = cell_runs(1)
        history = {
            run: [Trial(run.cell.key, round, Status.OK, latency_ms=1.0) for round in range(before)]
        }
        made = make(trials([run], 10, history=history), protocol=ENOUGH, history=history)
        assert [one.round for one in made.recorded] == rounds


def test_what_a_trial_is_asked_for(make):
    slot = Slot("GPU 0", "cuda", gpus(1)[0].gpu, [2, 3])
    (sent,) = make(trials(1), slots=[slot], executor={"foreign_wait_s": 7.0}).server.sent
    assert (sent["cores"], sent["foreign_wait_s"]) == ([2, 3], 7.0)
    (sent,) = make(trials(1), protocol=PROTOCOL).server.sent
    assert sent["cores"] is None


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ({"signal": 11}, "crashed", "killed by SIGSEGV"),
        ({"signal": 63}, "crashed", "killed by signal 63"),
        ({"exit": 3}, "crashed", "the process exited with code 3"),
        ({"signal": 9, "oom_killed": True}, "oom", "killed by the kernel: host memory ran out"),
        ({"signal": 9, "reason": "it wrote 5 bytes"}, "crashed", "it wrote 5 bytes"),
    ],
)
def test_a_process_without_a_result(make, outcome, status, reason):
    (record,) = make(
        trials(1), lambda request, env: without_result(**outcome, log="its log")
    ).recorded
    assert (record.status, record.reason) == (status, f"{reason} (in check)")
    assert (record.phase, record.extra["log"]) == ("check", "its log")
    assert record.wall_s is not None


def at_the_device(request):
    """A trial whose process could not use its GPU."""
    return {
        **ok(request, "error", reason="CUDA driver initialization failed", phase="device"),
        "phase": "device",
    }


class TestFailuresOfTheHarness:
    """They are tried again, and never a cell's at first sight."""

    @pytest.mark.parametrize(
        "failed",
        [
            at_the_device,
            lambda request: without_result(exit=1, phase=None),
            lambda request: without_result(signal=9, oom_killed=True, phase=None),
            lambda request: (
                dict.fromkeys(("result", "exit", "signal", "phase"))
                | {"failed": "no memory to fork"}
            ),
        ],
        ids=["device", "before", "memory", "fork"],
    )
    def test_one_that_passes_is_retried_and_recorded(self, make, failed):
        server = Server(
            lambda request, env: failed(request) if len(server.envs) < 3 else ok(request)
        )
        made = make(trials(1, 2), server=server)
        first, second = made.recorded
        assert (first.status, second.status) == ("ok", "ok")
        assert first.extra["harness_retries"] == made.progress.retries
        assert len(made.progress.retries) == 2
        assert "harness_retries" not in second.extra

    def test_one_that_stays_is_recorded_after_three_more(self, make):
        made = make(trials(1, 2), lambda request, env: at_the_device(request))
        (one,) = made.recorded
        assert (len(made.server.envs), one.status, len(one.extra["harness_retries"])) == (
            4,
            "error",
            3,
        )
        assert "initialization failed; tried 3 more times" in one.reason

    @pytest.mark.parametrize(
        ("status", "phase"),
        [
            *product(("error", "crashed", "oom"), ("setup", "build", "check")),
            ("unsupported", "device"),
        ],
    )
    def test_what_fails_in_code_of_the_user_or_cannot_run_here_is_not_retried(
        self, make, status, phase
    ):
        made = make(trials(1), lambda request, env: {**ok(request, status), "phase": phase})
        assert (len(made.server.envs), made.progress.retries) == (1, [])

    def test_a_server_that_does_not_start_for_a_moment(self, make, monkeypatch):
        starts = [OSError(errno.EAGAIN, "too many processes"), WorkerError("not ready"), Server()]
        monkeypatch.setattr(pool, "ForkServer", Mock(side_effect=starts))
        (record,) = make(trials(1), isolation="spawn", server=Server()).recorded
        assert (record.status, record.extra["harness_retries"]) == (
            "ok",
            [str(starts[0]), "not ready"],
        )

    @pytest.mark.parametrize(
        ("number", "kind"),
        [(errno.EAGAIN, OSError), (errno.ENOMEM, OSError), (errno.ENOENT, ConfigError)],
    )
    def test_only_an_interpreter_that_cannot_run_is_an_error_of_the_configuration(
        self, monkeypatch, number, kind
    ):
        refuse = Mock(side_effect=OSError(number, os.strerror(number)))
        monkeypatch.setattr(client.subprocess, "Popen", refuse)
        with pytest.raises(kind, match=os.strerror(number)):
            ForkServer(python="/venvs/a/bin/python")

    def test_a_stop_ends_the_retries(self, make):
        stop = threading.Event()
        made = make(
            trials(1), lambda request, env: (stop.set(), at_the_device(request))[1], stop=stop
        )
        assert (len(made.server.envs), made.recorded) == (1, [])

    def test_a_trial_whose_server_dies_is_run_once_more_from_a_separate_one(
        self, make, monkeypatch
    ):
        died, alone = (
            Server(lambda request, env: {"died": "the fork server ended (code -9)"}),
            Server(),
        )
        reason = "the fork server ended (code -9) (in check)"
        monkeypatch.setattr(pool, "ForkServer", lambda **_: alone)
        (one,) = make(trials(1), server=died).recorded
        assert (one.status, len(alone.envs), alone.closed) == ("ok", 1, True)
        assert one.extra["harness_retries"] == [reason]
        monkeypatch.setattr(pool, "ForkServer", lambda **_: died)
        (one,) = make(trials(1), server=died).recorded
        assert (one.status, one.reason, len(died.envs)) == (
            "crashed",
            f"{reason}; tried 1 more time",
            1 + 2,
        )
        answers = iter([{"died": "it ended"}, {"failed": "no memory to fork", "phase": None}])
        server = Server(lambda request, env: next(answers, None) or ok(request))
        monkeypatch.setattr(pool, "ForkServer", lambda **_: server)
        (one,) = make(trials(1), server=server).recorded
        assert (one.status, len(server.envs)) == (
            "ok",
            3,
        ), "the second failed before code of the user"

    def test_variables_of_a_cell_with_which_no_server_starts_are_its_own_crash(
        self, make, monkeypatch
    ):
        monkeypatch.setattr(pool, "ForkServer", Mock(side_effect=WorkerError("not ready")))
        planned = trials([*cell_runs(1, env={"LD_PRELOAD": "x"}), *cell_runs(1)])
        ended = sorted((one.status, one.reason) for one in make(planned).recorded)
        assert ended == [("crashed", "not ready"), ("ok", None)]


def test_a_trial_that_cannot_be_stored_ends_the_sweep_on_all_slots(make):
    stop = threading.Event()
    with pytest.raises(OSError, match="full"):
        make(trials(1), record=Mock(side_effect=OSError("full")), stop=stop)
    assert stop.is_set()


def test_if_a_thread_cannot_start_the_others_end(make, monkeypatch):
    def start(thread):
        if thread.name == "effbench-GPU 1":
            raise RuntimeError("can't start new thread")
        plain(thread)

    plain, stop = threading.Thread.start, threading.Event()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="new thread"):
        make(trials(3), slots=gpus(2), stop=stop)
    assert stop.is_set()


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        [],
        {},
        "text",
        {"status": "fine"},
        {"more": 1},
        {"latency_ms": "fast"},
        {"samples": []},
        {"samples": {"latency_ms": ["x"]}},
        {"extra": None},
        {"reason": 7},
        {"round": 3},
        {"cell_key": "another"},
    ],
    ids=str,
)
def test_a_result_that_is_no_record_is_its_own_trials_crash(make, wrong):
    def answer(request, env):
        outcome = ok(request)
        if request["cell"]["bs"] == 1:
            is_changed = isinstance(wrong, dict) and wrong
            outcome["result"] = {**outcome["result"], **wrong} if is_changed else wrong
        return outcome

    ended = {record.status: record for record in make(trials(2), answer).recorded}
    assert ended.keys() == {"crashed", "ok"}
    assert "invalid trial record" in ended["crashed"].reason


def test_a_trial_that_never_ends_is_killed_and_the_rest_goes_on(make):
    slow = cells(2)[0].key
    made = make(
        trials(2, 2),
        lambda request, env: None if key_of(request) == slow else ok(request),
        timeout_s=0.1,
    )
    assert Counter(str(one.status) for one in made.recorded) == {"timeout": 1, "ok": 2}
    assert len(made.server.killed) == 1
    (late,) = (one for one in made.recorded if one.status == "timeout")
    assert late.reason == "not done after 0.1 s (in check)"


def test_a_stop_ends_what_runs_and_records_none_of_it(make):
    stop = threading.Event()

    def answer(request, env):
        if request["round"] == 1:
            stop.set()
            return None
        return ok(request)

    made = make(trials(3, 2), answer, stop=stop)
    assert [one.round for one in made.recorded] == [0, 0, 0]
    assert len(made.server.killed) == 1


def test_fresh_interpreters_for_spawn_and_for_cells_with_variables(make, started):
    shared = make(trials(2), isolation="spawn").server
    fresh = {"preload": False, "env": {}}
    assert [(one.options, one.closed, len(one.envs)) for one in started] == [(fresh, True, 1)] * 2
    assert not shared.envs
    make(trials([*cell_runs(1), *cell_runs(1, env={"FOO": "1"})]), server=shared)
    server = started[-1]
    assert (len(shared.envs), server.envs) == (
        1,
        [{"CUDA_VISIBLE_DEVICES": "GPU-0", **server.options["env"]}],
    )


class TestLock:
    def runner(self, made, left):
        runner = threading.Thread(target=made.run, args=(left,))
        runner.start()
        assert made.progress.waiting_now.wait(20)
        return runner

    def test_a_device_in_use_is_waited_for_and_others_are_not(self, make):
        made = make(slots=gpus(2))
        with filelock.FileLock(made.slots[0].lock_path):
            runner = self.runner(made, trials(4))
            while len(made.recorded) < 3:  # one trial is with the slot that waits
                assert runner.is_alive()
                threading.Event().wait(0.01)
            assert {slot for slot, _ in made.progress.order} == {"GPU 1"}
        runner.join(20)
        assert len(made.recorded) == 4
        assert made.progress.waited == ["GPU 0"], "reported once"

    def test_waiting_ends_some_time(self, make):
        made = make(executor={"lock_timeout_s": 0.05})
        with (
            filelock.FileLock(made.slots[0].lock_path),
            pytest.raises(WorkerError, match=r"GPU 0 was in use .*resume=last"),
        ):
            made.run(trials(1))
        assert made.recorded == []

    def test_a_stop_ends_waiting(self, make):
        stop = threading.Event()
        made = make(stop=stop)
        with filelock.FileLock(made.slots[0].lock_path):
            runner = self.runner(made, trials(1))
            stop.set()
            runner.join(20)
        assert (runner.is_alive(), made.recorded) == (False, [])

    def test_the_lock_is_held_while_a_trial_runs_and_not_after(self, make):
        seen = []

        def answer(request, env):
            try:
                filelock.FileLock(made.slots[0].lock_path).acquire(timeout=0)
            except filelock.Timeout:
                seen.append("held")
            return ok(request)

        made = make(answer=answer)
        made.run(trials(2))
        assert seen == ["held", "held"]
        with filelock.FileLock(made.slots[0].lock_path).acquire(timeout=0):
            pass


class TestBaselines:
    """A trial gets the mode that its speedup refers to, if the sweep has such a cell."""

    @pytest.mark.parametrize(
        ("modes", "baseline_mode", "expected"),
        [
            (("eager", "default"), "eager", {"eager": None, "default": "eager"}),
            (("default", "cuda-graph"), "eager", {"default": None, "cuda-graph": None}),
            (("eager", "default"), "default", {"eager": "default", "default": None}),
        ],
    )
    def test_of_each_mode(self, make, tmp_path, modes, baseline_mode, expected):
        model = {"name": "tiny", "module": {"_target_": "torch.nn.Linear"}}
        first = replace(cells(1)[0], model=model)
        planned = [replace(first, mode={"name": name, "_target_": "m.M"}) for name in modes]
        server = Server()
        here = pool_of(server, tmp_path)
        here.cells = planned
        make(
            trials([CellRun(cell) for cell in planned]),
            pools={HERE: here},
            baseline_mode=baseline_mode,
        )
        found = {one["cell"]["mode"]["name"]: one["baseline"] for one in server.sent}
        assert {name: mode and mode["name"] for name, mode in found.items()} == expected

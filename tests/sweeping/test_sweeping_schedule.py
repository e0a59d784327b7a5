"""Who runs when, with slots and a fork server that are made up: no process, no torch."""

from __future__ import annotations

import threading
from collections import Counter

import pytest
from effbench.sweeping import schedule as scheduling
from schedule_parts import PROTOCOL, Server, cells, gpus, ok, units

from effbench.cell import Cell, Status, Trial
from effbench.errors import StoreError
from effbench.sweep.interpreters import HERE, Unit
from effbench.sweep.plan import Job, jobs_of, with_retries
from effbench.sweep.schedule import Slot


def test_every_trial_once_and_in_the_planned_order_on_one_slot(make):
    schedule = make()
    jobs = jobs_of(units(10), 3, 5, {})
    schedule.run(jobs)
    assert [job for _, job in schedule.observer.order] == jobs
    assert [(trial.cell_key, trial.round) for trial in schedule.recorded] == [(j.cell.key, j.round) for j in jobs]


def test_several_slots_run_in_parallel(make):
    together = threading.Barrier(3, timeout=20)  # is only passed with three trials at the same time

    def answer(request, env):
        if request["round"] == 0:
            together.wait()
        return ok(request)

    schedule = make(Server(answer), gpus(3))
    schedule.run(jobs_of(units(3), 1, 0, {}))
    assert schedule.observer.most == 3
    assert Counter(slot for slot, _ in schedule.observer.order) == {"GPU 0": 1, "GPU 1": 1, "GPU 2": 1}


def test_no_cell_twice_at_once_though_slots_are_free(make):
    schedule = make(slots=gpus(4))
    schedule.run(jobs_of(units(2), 30, 0, {}))  # the watcher asserts it at every start
    assert len(schedule.recorded) == 60
    assert schedule.observer.most <= 2
    assert Counter(trial.cell_key for trial in schedule.recorded) == {cell.key: 30 for cell in cells(2)}


def test_the_cpu_and_a_gpu_never_work_side_by_side(make):
    beside: list[set[str]] = []
    schedule = make(slots=[*gpus(2), Slot("CPU", "cpu")])

    def answer(request, env):
        with schedule.observer.lock:
            beside.append({"cpu" if name == "CPU" else "cuda" for name in schedule.observer.running})
        return ok(request)

    schedule.places[HERE].servers.first.answer = answer
    schedule.run(jobs_of([*units(4), *units(4, device="cpu")], 2, 0, {}))
    assert len(schedule.recorded) == 16
    assert {frozenset(devices) for devices in beside} == {frozenset({"cpu"}), frozenset({"cuda"})}


def test_a_noisy_round_keeps_its_further_tries_when_resumed():
    planned = units(3)
    one, other, failed = cells(3)
    history = {
        planned[0].key: [Trial(one.key, 0, Status.NOISY), Trial(one.key, 1, Status.NOISY, attempt=1)],
        planned[1].key: [Trial(other.key, 0, Status.OK)],
        planned[2].key: [Trial(failed.key, 0, Status.NOISY), Trial(failed.key, 1, Status.ERROR)],
    }
    later = [Job(one, 1), Job(other, 2)]
    assert with_retries(later, planned, history, 2) == [Job(one, 0, 1), *later]
    assert with_retries(later, planned, history, 1) == later


def test_each_slot_sees_its_gpu_and_the_cpu_none(make):
    server = Server()
    schedule = make(server, [*gpus(2), Slot("CPU", "cpu")])
    schedule.run(jobs_of([*units(4), *units(3, "cpu")], 1, 0, {}))
    assert Counter(env["CUDA_VISIBLE_DEVICES"] for env in server.envs)[""] == 3
    assert {env["CUDA_VISIBLE_DEVICES"] for env in server.envs} <= {"", "GPU-0", "GPU-1"}
    for slot, job in schedule.observer.order:
        assert (slot == "CPU") == (job.cell.device == "cpu")
    assert {trial.gpu_uuid for trial in schedule.recorded} <= {None, "GPU-0", "GPU-1"}


def test_a_cell_for_a_device_without_slot_says_so_itself(make):
    schedule = make(slots=[Slot("CPU", "cpu")])
    schedule.run(jobs_of(units(1, "cuda"), 1, 0, {}))
    assert len(schedule.recorded) == 1


@pytest.mark.parametrize("status", [status for status in Status if not status.is_measured])
def test_a_failure_drops_the_rounds_that_are_left(make, status):
    bad = cells(2)[1].key

    def answer(request, env):
        failed = Cell.from_params(request["cell"]).key == bad and request["round"] == 1
        return ok(request, status if failed else "ok")

    schedule = make(Server(answer))
    schedule.run(jobs_of(units(2), 4, 0, {}))
    assert Counter(trial.cell_key for trial in schedule.recorded)[bad] == 2
    assert len(schedule.recorded) == 6
    assert [(job.cell.key, job.round) for job in schedule.observer.dropped_jobs] == [(bad, 2), (bad, 3)]


@pytest.mark.parametrize("status", [Status.NOISY, Status.DEGRADED])
def test_measured_trials_go_on(make, status):
    schedule = make(Server(lambda request, env: ok(request, status)))
    schedule.run(jobs_of(units(1), 3, 0, {}))
    assert [trial.round for trial in schedule.recorded] == [0, 1, 2]


def test_a_noisy_trial_is_tried_again_after_the_rest_of_its_round(make):
    unlucky = cells(3)[1].key

    def answer(request, env):
        again = request["attempt"] > 0 or Cell.from_params(request["cell"]).key != unlucky or request["round"] > 0
        return ok(request, "ok" if again else "noisy")

    schedule = make(Server(answer), protocol={**PROTOCOL, "attempts": 2})
    jobs = jobs_of(units(3), 2, 0, {})
    schedule.run(jobs)
    tried = [(job.round, job.attempt) for _, job in schedule.observer.order]
    assert tried == [(0, 0)] * 3 + [(0, 1)] + [(1, 0)] * 3
    (another,) = schedule.observer.added_jobs
    assert (another.cell.key, another.round, another.attempt) == (unlucky, 0, 1)
    statuses = [(str(t.status), t.attempt) for t in schedule.recorded if t.cell_key == unlucky]
    assert statuses == [("noisy", 0), ("ok", 1), ("ok", 0)]


def test_noise_without_end_is_tried_so_often_and_no_more(make):
    schedule = make(Server(lambda request, env: ok(request, "noisy")), protocol={**PROTOCOL, "attempts": 3})
    schedule.run(jobs_of(units(1), 2, 0, {}))
    assert [(trial.round, trial.attempt) for trial in schedule.recorded] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip


class TestEnoughRounds:
    """Rounds end early for a cell that is known well enough."""

    PROTOCOL = {**PROTOCOL, "enough_interval": 0.01}  # noqa: RUF012

    def test_a_quiet_cell_stops_and_a_loud_one_goes_on(self, make):
        loud = cells(2)[0].key

        def answer(request, env):
            done = ok(request)
            if done["result"]["cell_key"] == loud:
                done["result"]["latency_ms"] = 1.0 + request["round"] / 10
            return done

        schedule = make(Server(answer), protocol=self.PROTOCOL)
        schedule.run(jobs_of(units(2), 10, 0, {}))
        counts = Counter(trial.cell_key for trial in schedule.recorded)
        assert counts == {loud: 10, cells(2)[1].key: 5}
        assert [job.round for job in schedule.observer.dropped_jobs] == [5, 6, 7, 8, 9]

    def test_the_period_must_be_known_too(self, make):
        def answer(request, env):
            done = ok(request)
            done["result"]["period_ms"] = 1.0 + request["round"] / 10
            return done

        schedule = make(Server(answer), protocol=self.PROTOCOL)
        schedule.run(jobs_of(units(1), 8, 0, {}))
        assert len(schedule.recorded) == 8

    def test_rounds_of_before_a_resumption_count(self, make):
        (cell,) = cells(1)
        before = [Trial(cell.key, round, Status.OK, latency_ms=1.0) for round in range(4)]
        schedule = make(protocol=self.PROTOCOL, history={Unit(cell).key: before})
        recorded = {(Unit(cell).key, round): Status.OK for round in range(4)}
        schedule.run(jobs_of([Unit(cell)], 10, 0, recorded))
        assert [trial.round for trial in schedule.recorded] == [4]

    def test_a_cell_that_was_known_well_enough_is_not_taken_up_again(self, make):
        (cell,) = cells(1)
        before = [Trial(cell.key, round, Status.OK, latency_ms=1.0) for round in range(5)]
        schedule = make(protocol=self.PROTOCOL, history={Unit(cell).key: before})
        schedule.run(jobs_of([Unit(cell)], 10, 0, {(Unit(cell).key, round): Status.OK for round in range(5)}))
        assert schedule.recorded == []
        assert len(schedule.observer.dropped_jobs) == 5

    def test_a_noisy_round_is_set_aside(self, make):
        def answer(request, env):
            return ok(request, "noisy" if request["round"] == 2 else "ok")

        schedule = make(Server(answer), protocol=self.PROTOCOL)
        schedule.run(jobs_of(units(1), 10, 0, {}))
        assert [trial.round for trial in schedule.recorded] == [0, 1, 2, 3, 4, 5]

    def test_noise_keeps_it_going(self, make):
        schedule = make(Server(lambda request, env: ok(request, "noisy")), protocol=self.PROTOCOL)
        schedule.run(jobs_of(units(1), 7, 0, {}))
        assert len(schedule.recorded) == 7


def test_what_a_trial_is_asked_for(make):
    server = Server()
    slot = Slot("GPU 0", "cuda", gpus(1)[0].gpu, (2, 3))
    schedule = make(server, [slot], ceilings={"copy_bytes_per_s": 1.0}, foreign_wait_s=7.0)
    schedule.run(jobs_of(units(1), 2, 0, {}))
    first, second = server.requests
    assert (first["cores"], first["foreign_wait_s"], first["ceilings"]) == ([2, 3], 7.0, {"copy_bytes_per_s": 1.0})
    assert (first["profile"], second["profile"]) == (True, True)
    without = Server()
    make(without, protocol={**PROTOCOL, "profile": False}).run(jobs_of(units(1), 1, 0, {}))
    assert without.requests[0]["profile"] is False
    assert without.requests[0]["cores"] is None


def without_result(**more):
    return {"result": None, "exit": None, "signal": None, "oom_killed": False, "log": "", "pid": 7, **more}


@pytest.mark.parametrize(
    ("outcome", "status", "reason"),
    [
        ({"signal": 11}, "crashed", "killed by SIGSEGV (in check)"),
        ({"signal": 63}, "crashed", "killed by signal 63 (in check)"),
        ({"exit": 3}, "crashed", "the process exited with code 3 (in check)"),
        ({"signal": 9, "oom_killed": True}, "oom", "ended by the kernel: host memory ran out (in check)"),
        ({"signal": 9, "reason": "its process wrote 5 bytes"}, "crashed", "its process wrote 5 bytes (in check)"),
    ],
)
def test_a_process_without_a_result(make, outcome, status, reason):
    full = without_result(**outcome, log="its log")
    schedule = make(Server(lambda request, env: full))
    schedule.run(jobs_of(units(1), 1, 0, {}))
    (trial,) = schedule.recorded
    assert (trial.status, trial.reason, trial.phase) == (status, reason, "check")
    assert trial.extra.get("log") == full.get("log")
    assert trial.wall_s is not None


def at_the_device(request):
    """A trial whose process could not use its GPU."""
    failed = ok(request, "error")
    failed["result"] |= {"reason": "in device: RuntimeError: CUDA driver initialization failed", "phase": "device"}
    return {**failed, "phase": "device"}


class TestFailuresOfTheHarness:
    """They are tried again, and never a cell's at first sight."""

    @pytest.mark.parametrize(
        "failed",
        [
            at_the_device,
            lambda request: without_result(exit=1, phase=None),
            lambda request: dict.fromkeys(("result", "exit", "signal", "phase")) | {"failed": "no memory to fork"},
        ],
        ids=["device", "before", "fork"],
    )
    def test_one_that_passes_is_retried_and_told(self, make, failed):
        schedule = make(server := Server(lambda request, env: failed(request) if len(server.envs) < 3 else ok(request)))
        schedule.run(jobs_of(units(1), 2, 0, {}))
        first, second = schedule.recorded
        assert (first.status, second.status) == ("ok", "ok")
        assert first.extra["harness_retries"] == schedule.observer.retries
        assert len(schedule.observer.retries) == 2
        assert "harness_retries" not in second.extra

    def test_one_that_stays_is_recorded_after_three_more(self, make):
        schedule = make(server := Server(lambda request, env: at_the_device(request)))
        schedule.run(jobs_of(units(1), 2, 0, {}))
        (trial,) = schedule.recorded
        assert len(server.envs) == 4
        assert trial.status == "error"
        assert "initialization failed; tried 3 more times" in trial.reason
        assert len(trial.extra["harness_retries"]) == 3

    @pytest.mark.parametrize("phase", ["setup", "build", "check"])
    @pytest.mark.parametrize("status", ["error", "crashed", "oom"])
    def test_what_fails_in_code_of_the_user_is_not_retried(self, make, phase, status):
        schedule = make(server := Server(lambda request, env: {**ok(request, status), "phase": phase}))
        schedule.run(jobs_of(units(1), 1, 0, {}))
        assert (len(server.envs), schedule.observer.retries) == (1, [])

    def test_what_cannot_run_here_is_not_retried(self, make):
        schedule = make(server := Server(lambda request, env: {**ok(request, "unsupported"), "phase": "device"}))
        schedule.run(jobs_of(units(1), 1, 0, {}))
        assert len(server.envs) == 1

    def test_a_stop_ends_the_retries(self, make):
        stop = threading.Event()
        schedule = make(server := Server(lambda request, env: (stop.set(), at_the_device(request))[1]), stop=stop)
        schedule.run(jobs_of(units(1), 1, 0, {}))
        assert (len(server.envs), schedule.recorded) == (1, [])

    def test_a_trial_whose_server_dies_is_run_once_more_from_one_of_its_own(self, make, monkeypatch):
        alone = Server()
        alone.wait_ready = alone.close = lambda: None
        monkeypatch.setattr(scheduling, "ForkServer", lambda: alone)
        schedule = make(Server(lambda request, env: {"died": "the fork server ended (code -9)"}))
        schedule.run(jobs_of(units(1), 1, 0, {}))
        (trial,) = schedule.recorded
        assert (trial.status, len(alone.envs)) == ("ok", 1)
        assert trial.extra["harness_retries"] == ["the fork server ended (code -9) (in check)"]

    def test_a_trial_that_ends_every_server_is_crashed(self, make, monkeypatch):
        died = Server(lambda request, env: {"died": "the fork server ended (code -9)"})
        died.wait_ready = died.close = lambda: None
        monkeypatch.setattr(scheduling, "ForkServer", lambda: died)
        schedule = make(died)
        schedule.run(jobs_of(units(1), 1, 0, {}))
        (trial,) = schedule.recorded
        assert (trial.status, trial.phase, len(died.envs)) == ("crashed", "check", 2)
        assert trial.reason == "the fork server ended (code -9) (in check); tried 1 more time"

    def test_a_server_that_does_not_start_is_tried_again(self, make, monkeypatch):
        def fail():
            made.append(1)
            raise BlockingIOError(11, "Resource temporarily unavailable")

        made = []
        monkeypatch.setattr(scheduling, "ForkServer", fail)
        dead = Server()
        dead.dead = "ended"
        with pytest.raises(OSError, match="unavailable"):
            make(dead).run(jobs_of(units(1), 1, 0, {}))
        assert len(made) == 4


@pytest.mark.parametrize(
    "result",
    [5, [], {}, "text", {"status": "fine"}, {"more": 1}, {"latency_ms": "fast"}, {"samples": {"latency_ms": ["x"]}},
     {"samples": []}, {"extra": None}, {"reason": 7}, {"round": 3}, {"cell_key": "another"}],
    ids=str,
)  # fmt: skip
def test_a_result_that_is_no_record_is_its_own_trials_crash(make, result):
    def answer(request, env):
        whole = ok(request)
        if request["cell"]["bs"] == 1:
            whole["result"] = {**whole["result"], **result} if isinstance(result, dict) and result else result
        return whole

    schedule = make(Server(answer))
    schedule.run(jobs_of(units(2), 1, 0, {}))
    assert sorted(trial.status for trial in schedule.recorded) == ["crashed", "ok"]
    (crashed,) = (trial for trial in schedule.recorded if trial.status == "crashed")
    assert "no trial's record" in crashed.reason


def test_lone_surrogates_of_a_reason_can_be_printed(make):
    def answer(request, env):
        failed = ok(request, "error")
        failed["result"]["reason"] = "in check: RuntimeError: \udcff"
        return failed

    schedule = make(Server(answer))
    schedule.run(jobs_of(units(1), 1, 0, {}))
    assert schedule.recorded[0].reason == "in check: RuntimeError: \\udcff"


def test_a_trial_that_never_ends_is_killed_and_the_rest_goes_on(make):
    slow = cells(2)[0].key
    server = Server(lambda request, env: None if Cell.from_params(request["cell"]).key == slow else ok(request))
    schedule = make(server, timeout_s=0.1)
    schedule.run(jobs_of(units(2), 2, 0, {}))
    assert Counter(str(trial.status) for trial in schedule.recorded) == {"timeout": 1, "ok": 2}
    assert len(server.killed) == 1
    (trial,) = (trial for trial in schedule.recorded if trial.status == "timeout")
    assert trial.reason == "not done after 0.1 s (in check)"


def test_a_stop_ends_what_runs_and_records_none_of_it(make):
    stop = threading.Event()

    def answer(request, env):
        if request["round"] == 1:
            stop.set()
            return None
        return ok(request)

    server = Server(answer)
    schedule = make(server, stop=stop)
    schedule.run(jobs_of(units(3), 2, 0, {}))
    assert [trial.round for trial in schedule.recorded] == [0, 0, 0]
    assert len(server.killed) == 1


def test_an_error_while_recording_stops_the_sweep_and_is_raised(make):
    def record(job, trial):
        raise StoreError("the disk is full")

    schedule = make(record=record, slots=gpus(2))
    with pytest.raises(StoreError, match="the disk is full"):
        schedule.run(jobs_of(units(6), 2, 0, {}))
    assert len(schedule.observer.order) <= 2

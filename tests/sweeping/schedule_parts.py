"""Slots, a fork server and an observer that are made up: no process, no torch."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from effbench.cell import Cell, Status, Trial
from effbench.sweep.client import Task
from effbench.sweep.interpreters import HERE, Unit
from effbench.sweep.plan import Job
from effbench.sweep.schedule import Slot


def cells(count, device="cuda", env=None):
    return [Cell({"name": "m"}, bs, {"name": "eager"}, "float32", "inference", device, {}, env or {})
            for bs in range(1, count + 1)]  # fmt: skip


def units(count, device="cuda", env=None, interpreters=(HERE,)):
    return [Unit(cell, one) for cell in cells(count, device, env) for one in interpreters]


def gpus(count):
    return [Slot(f"GPU {i}", "cuda", {"index": i, "uuid": f"GPU-{i}", "visible": f"GPU-{i}"}) for i in range(count)]


PROTOCOL = {"rounds": 1, "attempts": 1, "enough_interval": None, "profile": True}


class Server:
    """Answers every trial as `answer(request, env)` says: an outcome (with its `phase`, if that is not `check`).

    None stands for a trial that never ends.
    """

    def __init__(self, answer=None):
        self.answer = answer or (lambda request, env: ok(request))
        self.pool = ThreadPoolExecutor(16)
        self.killed: list[str] = []
        self.dead = None
        self.envs: list[dict] = []
        self.requests: list[dict] = []

    def submit(self, name, payload, env=None, on_phase=lambda phase: None):
        assert name == "trial"
        task = Task(str(len(self.envs)), on_phase)
        self.envs.append(env)
        self.requests.append(payload)

        def work():
            outcome = self.answer(payload, env)
            if outcome is not None:
                task.phase = outcome.pop("phase", task.phase)
                task.end(outcome)

        task.phase = "check"
        self.pool.submit(work)
        return task

    def kill(self, task):
        self.killed.append(task.id)
        task.end({"result": None, "exit": None, "signal": 9, "oom_killed": False, "log": "", "pid": 7})


def ok(request, status="ok"):
    cell = Cell.from_params(request["cell"])
    trial = Trial(cell.key, request["round"], Status(status), None, request["attempt"], latency_ms=1.0, pid=7)
    return {"result": trial.to_json(), "exit": 0, "signal": None, "oom_killed": False, "log": ""}


class Watcher:
    """Observes, and knows what ran beside what."""

    def __init__(self):
        self.lock = threading.Lock()
        self.order: list[tuple[str, Job]] = []
        self.running: dict[str, Job] = {}
        self.most = 0
        self.waited: list[str] = []
        self.retries: list[str] = []
        self.waiting_now = threading.Event()
        self.dropped_jobs: list[Job] = []
        self.added_jobs: list[Job] = []

    def started(self, slot, job):
        with self.lock:
            assert slot.name not in self.running, "one trial at a time on a slot"
            assert job.cell.key not in {other.cell.key for other in self.running.values()}, "a cell never twice at once"
            self.running[slot.name] = job
            self.order.append((slot.name, job))
            self.most = max(self.most, len(self.running))

    def phase(self, slot, phase): ...

    def waiting(self, slot, job):
        self.waited.append(slot.name)
        self.waiting_now.set()

    def retried(self, slot, job, reason):
        self.retries.append(reason)

    def ended(self, slot, job, trial):
        with self.lock:
            assert self.running.pop(slot.name) == job

    def added(self, job):
        self.added_jobs.append(job)

    def dropped(self, jobs):
        self.dropped_jobs += jobs

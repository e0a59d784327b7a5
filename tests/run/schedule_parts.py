"""Slots, a fork server, a store and an observer that are made up: no process, no torch."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from effbench.core.cell import Cell, Status, Trial
from effbench.core.message import TaskEnd
from effbench.run.client import ForkServer, ServerRequest
from effbench.run.devices import Slot
from effbench.run.interpreters import HERE, Interpreter
from effbench.run.plan import CellRun, Settings
from effbench.run.pool import ProbedServer
from effbench.run.probe import ProbedMachine
from effbench.run.schedule import RoundsNeeded
from effbench.store.trials import HostSpeeds

A, B = Interpreter("/venvs/a/bin/python"), Interpreter("/venvs/b/bin/python")
FOLDER = Interpreter(folder="/before")
CPU = Slot("CPU", "cpu")
#: Why a trial is marked.
BUSY = "host busy for 83 % of the timing"
#: What a probe finds.
FACTS = {
    "gpu_name": None,
    "gpu_memory_bytes": None,
    "driver_version": None,
    "cuda_version": None,
    "torch_version": "2.13.0",
    "triton_version": None,
    "python": "3.12.1",
    "cpu_name": "c",
    "platform": "p",
    "flags": {"OMP_NUM_THREADS": "2"},
}


MODEL = {"name": "m", "module": {"_target_": "m.Net"}}
MODE = {"name": "eager", "_target_": "m.Mode"}


def cells(count, device="cuda", env=None):
    return [
        Cell(MODEL, bs, MODE, "float32", "inference", device, {}, env or {})
        for bs in range(1, count + 1)
    ]


def cell_runs(count, device="cuda", env=None, interpreters=(HERE,)):
    return [CellRun(cell, one) for cell in cells(count, device, env) for one in interpreters]


def groups(runs, rounds=1, seed=0, history=None):
    """The trials of a new (or resumed) sweep, by group; `runs` may be a number of cells on a
    GPU."""
    settings = Settings.with_defaults(protocol={"rounds": rounds}, sweep={"seed": seed})
    runs = cell_runs(runs) if isinstance(runs, int) else runs
    return RoundsNeeded(settings, runs, history or {}).groups()


def trials_of(groups):
    """The run and the round of each trial."""
    return [(run, group.round) for group in groups for run in group.runs]


def runs_of(groups):
    return list(dict.fromkeys(run for run, _ in trials_of(groups)))


def gpus(count):
    return [
        Slot(f"GPU {index}", "cuda", index, f"GPU-{index}", f"GPU-{index}")
        for index in range(count)
    ]


#: Made-up trials do not meet each other.
PROTOCOL = {
    "rounds": 1,
    "compilations": 1,
    "enough_interval": None,
    "profile": False,
    "duet": False,
}


class Server(ForkServer):
    """Answers every trial as `answer(request, env)` says: an outcome (with its `phase`, if that is
    not `check`).

    None stands for a trial that never ends.
    """

    def __init__(self, answer=None, **options):
        self.answer = answer or (lambda request, env: ok(request))
        self.options = options
        self.threads = ThreadPoolExecutor(16)
        self.killed: list[str] = []
        self.dead = None
        self.envs: list[dict] = []
        self.sent: list[dict] = []
        self.tasks: list[str] = []
        self.closed = False

    def wait_ready(self, stop=None): ...

    def close(self):
        self.closed = True

    def submit(self, task, payload, env=None):
        request = ServerRequest(str(len(self.envs)), phase="check", pid=7)
        if task == "preload":
            request.end(TaskEnd({"errors": {}}))
            return request
        assert task in ("trial", "check", "coldstart")
        self.tasks.append(task)
        self.envs.append(env)
        self.sent.append(payload)
        self.threads.submit(self.work, request, payload, env)
        return request

    def work(self, request, payload, env):
        outcome = self.answer(payload, env)
        if outcome is not None:
            request.phase = outcome.pop("phase", request.phase)
            request.end(TaskEnd(**outcome))

    def kill(self, request):
        self.killed.append(request.id)
        request.end(TaskEnd(**without_result(code=-9)))


def without_result(**more):
    return {"pid": 7, **more}


def key_of(request):
    return Cell(**request["cell"]).key


def ok(request, status="ok", **values):
    trial = Trial(
        key_of(request),
        request["round"],
        Status(status),
        None,
        latency_ms=1.0,
        pid=7,
    )
    result = {**trial.to_json(), **values}
    return {"result": result}


def marked(request, is_marked=True, **values):
    """A trial that is ok, and marked if `is_marked`."""
    return ok(request, disturbance=BUSY if is_marked else None, **values)


class Store:
    """Keeps the records, and those of each environment."""

    def __init__(self):
        self.recorded = []
        self.environments = []

    def history(self, sweep_id, environment_id):
        return {}

    def host_speeds(self, environment_id):
        return HostSpeeds()

    def add_trial(self, sweep_id, environment_id, trial):
        self.recorded.append(trial)
        self.environments.append(environment_id)


class Watcher:
    """Observes, and asserts that no slot and no cell runs two trials at once."""

    def __init__(self):
        self.lock = threading.Lock()
        self.order: list[tuple[str, CellRun, int]] = []
        self.running: dict[str, CellRun] = {}
        self.waited: list[str] = []
        self.retries: list[str] = []
        self.waiting_now = threading.Event()
        self.notes: list[str] = []

    def started(self, slot, run, round):
        with self.lock:
            assert slot not in self.running, "one trial at a time on a slot"
            assert run.cell.key not in {other.cell.key for other in self.running.values()}
            self.running[slot] = run
            self.order.append((slot, run, round))

    def phase(self, run, phase): ...

    def waiting(self, slot):
        self.waited.append(slot)
        self.waiting_now.set()

    def retried(self, slot, run, reason):
        self.retries.append(reason)

    def ended(self, run, record):
        with self.lock:
            (slot,) = (name for name, running in self.running.items() if running == run)
            del self.running[slot]

    def note(self, text):
        self.notes.append(text)

    def dropped(self, run): ...


def probed(server, environment_id="e0"):
    machine = ProbedMachine(SimpleNamespace(id=environment_id), {}, [])
    return ProbedServer(server, machine, is_lent=True)

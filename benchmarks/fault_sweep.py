"""A real sweep in a process of its own for faults.py: start and resume it, and check what it
recorded and left."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from effbench.core.cell import Status, StoredTrial
from effbench.core.processes import environment_of, process_table
from effbench.store import Store
from effbench.store.connect import EmptyError

HERE = Path(__file__).resolve().parent
MARK = "EFFBENCH_FAULTS"  # environment variable of all processes of a sweep: its folder
CELLS, ROUNDS = 6, 4
TINY = (
    "protocol=quick",
    "protocol.budget_s=0.05",
    "protocol.min_time_s=0.01",
    "protocol.warmup_s=0.01",
    "protocol.host_tolerance=null",
    "device=cpu",
)
SWEEP = (
    "model=custom",
    "model.module._target_=victims.Victim",
    "model.inputs.x.shape=[4]",
    f"bs={','.join(map(str, range(1, CELLS + 1)))}",
    f"protocol.rounds={ROUNDS}",
    "timeout_s=20",
    "on_failure=ignore",
)
#: The line that `Progress.ended` prints of a trial that has been recorded.
LINE = re.compile(r" *\d+ % · round (?P<round>\d+)/\d+ · .*?\bbs=(?P<bs>\d+)\b.*? · \w+")
#: The first line.
TITLE = re.compile(r"sweep (?P<id>\S+) · ")
TIMEOUT_S = 120.0
#: Time for all processes of a sweep to end after its orchestrator has ended.
ORPHAN_S = 20.0


class FaultError(Exception):
    """A check failed."""


def faults_of(database: Path) -> list[tuple[object, ...]]:
    """Return what SQLite finds wrong with a file."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        damage = connection.execute("PRAGMA integrity_check").fetchall()
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [row for row in damage if row != ("ok",)] + broken


def until(
    condition: Callable[[], object], what: str, timeout_s: float = TIMEOUT_S, required: bool = True
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            if not required:
                return
            raise FaultError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(0.02)


@dataclass
class Tally:
    """What was counted for a kind of fault. `committed`: trials in the database when the fault was
    over."""

    injected: int = 0
    committed: int = 0
    lost: int = 0
    twice: int = 0
    resumed: int = 0
    orphans: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass(frozen=True)
class Recorded:
    """A recorded trial."""

    id: int
    status: str


@dataclass(frozen=True, order=True)
class Place:
    """Which trial of the sweep it is: its cell and its round."""

    bs: int
    round: int


@dataclass(frozen=True)
class State:
    """What is recorded of the sweep. `name`: its state, None if it is not recorded; `has_others`:
    whether the database has other sweeps."""

    name: str | None = None
    has_others: bool = False

    @property
    def is_complete(self) -> bool:
        return self.name == "completed"

    @property
    def is_unfinished(self) -> bool:
        return self.name is not None and not self.is_complete


@dataclass
class Sweep:
    """A sweep in a folder of its own that is started, disturbed and resumed until it is complete.

    When it is complete and another fault follows, a new sweep begins in another database.
    """

    folder: Path
    db: str = "results/0.db"
    process: subprocess.Popen | None = None
    reader: threading.Thread | None = None
    lines: list[str] = field(default_factory=list)  # output of all processes, without the title
    promised: Counter[Place] = field(default_factory=Counter)  # lines that say: recorded
    recorded: dict[Place, Recorded] = field(default_factory=dict)
    id: str | None = None
    is_mounted: bool = False
    databases: int = 1
    harmed: int = 0  # trials that faults may have harmed
    tally: Tally = field(default_factory=Tally)
    # of faults that ended the sweep since it last ran
    to_resume: list[Tally] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("tmp", "cache", "results"):
            (self.folder / name).mkdir(parents=True)
        search_path = os.pathsep.join(map(str, (HERE.parent, HERE / "faulty")))
        self.env = {
            name: value for name, value in os.environ.items() if not name.startswith("EFFBENCH_")
        }
        self.env |= {
            MARK: str(self.folder),
            "PYTHONPATH": search_path,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder.parent / "inductor"),
        }

    # --- run it ---

    def has_lines(self, number: int) -> bool:
        """Return whether the sweep has printed this many lines, or has ended."""
        return not self.is_running or len(self.lines) >= number

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def launch(self, *words: str, errors: str = "stderr") -> subprocess.Popen:
        """Start `effbench -m` with these words; its standard error goes to a file of this name."""
        with (self.folder / errors).open("w") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "effbench", "-m", *words],
                cwd=self.folder,
                env=self.env,
                text=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )

    def errors(self, name: str = "stderr") -> str:
        return (self.folder / name).read_text()

    def start(self) -> None:
        """Start the sweep; if it is recorded, resume it; if it is complete, start another one in a
        new database."""
        state = self.state()
        if state.is_complete:
            self.db = f"results/{self.databases}.db"
            self.id = None
            self.databases += 1
            self.promised.clear()
            self.recorded.clear()
            self.harmed = 1  # by the fault that is being injected
        if state.is_unfinished:
            # `last` is the newest sweep, which is not this one after a race
            which = self.id if state.has_others else "last"
            self.process = self.launch(f"resume={which}", f"db={self.db}")
        else:
            self.process = self.launch(*TINY, *SWEEP, f"db={self.db}")
        self.reader = threading.Thread(target=self.read, args=(self.process,), daemon=True)
        self.reader.start()

    def read(self, process: subprocess.Popen) -> None:
        with process.stdout as lines:
            for line in lines:
                title = TITLE.match(line)
                if title is not None:
                    self.begin(title["id"])
                    continue
                trial = LINE.match(line)
                if trial is not None:
                    self.promised[Place(int(trial["bs"]), int(trial["round"]) - 1)] += 1
                self.lines.append(line)

    def begin(self, sweep_id: str) -> None:
        """Note that the sweep has begun or goes on."""
        self.id = sweep_id
        for tally in self.to_resume:
            tally.resumed += 1
        self.to_resume.clear()

    def state(self) -> State:
        """Return what is recorded of the sweep, and set its id."""
        if not (self.folder / self.db).exists():
            return State()
        try:
            with Store.open(self.folder / self.db) as store:
                sweeps = store.sweeps()
        except EmptyError:  # it ended between creating the file and the tables in it
            return State()
        has_others = len(sweeps) > 1
        for sweep in sweeps:
            if sweep.name is None:
                self.id = sweep.id
                return State(sweep.state, has_others)
        self.id = None
        return State(has_others=has_others)

    def wait_moment(self, rng: random.Random, early: bool = False) -> None:
        """Wait for a random moment of the running sweep; `early`: perhaps before its first
        trial."""
        while True:
            if not self.is_running:
                if self.process:
                    self.settle()
                self.start()
                if early and rng.random() < 0.4:
                    time.sleep(rng.uniform(0, 6))
                    return
            enough = len(self.lines) + rng.randint(1, 3)
            until(partial(self.has_lines, enough), "trials")
            time.sleep(rng.uniform(0, 0.4))
            if not self.is_running:
                self.require_code({0})
            elif not self.state().is_complete:  # else it only prints its summary
                return

    def goes_on(self, trials: int = 1) -> None:
        """Wait until more trials are recorded, or all of them."""
        before = len(self.lines)
        until(partial(self.has_lines, before + trials), "the sweep goes on")
        if not self.is_running:
            self.require_code({0})

    def ends(self, *codes: int) -> None:
        """Wait until the sweep has ended, with one of these codes or because it was complete."""
        until(lambda: not self.is_running, "the sweep ends", 60)
        self.require_code({0, *codes})

    def require_code(self, codes: set[int]) -> None:
        if self.process.returncode not in codes:
            raise FaultError(
                f"exit code {self.process.returncode}, not {sorted(codes)}: {self.errors()[-2000:]}"
            )
        if "Traceback" in self.errors():
            raise FaultError(self.errors()[-2000:])

    def find(self, target: str) -> int | None:
        """Return the pid of the orchestrator, of its newest fork server or of a worker; None if
        there is none."""
        if target == "orchestrator":
            return self.process.pid
        table = process_table()
        servers = [pid for pid, (parent, _) in table.items() if parent == self.process.pid]
        if target == "server":
            return max(servers, default=None)
        return next((pid for pid, (parent, _) in table.items() if parent in servers), None)

    # --- check it ---

    def marked(self) -> list[int]:
        return [pid for pid in process_table() if environment_of(pid, MARK) == str(self.folder)]

    def left(self) -> list[int]:
        """Return processes that models have left behind and that still run; some have an empty
        environment."""
        file = self.folder / "left"
        if not file.exists():
            return []
        running = process_table()
        pids = []
        for pid in map(int, file.read_text().split()):
            if pid in running and "sleep" in Path(f"/proc/{pid}/cmdline").read_text():
                pids.append(pid)
        return pids

    def settle(self) -> None:
        """Check what must hold once the sweep's orchestrator has ended."""
        self.process.wait()
        self.reader.join(ORPHAN_S)  # until then, a line may be on its way
        until(
            lambda: not self.marked() and not self.left(), "processes end", ORPHAN_S, required=False
        )
        orphans = [*self.marked(), *self.left()]
        self.tally.orphans += len(orphans)
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kept = [path.name for path in (self.folder / "tmp").iterdir()]
        if kept:
            raise FaultError(f"temporary files are left: {kept}")
        if orphans:
            raise FaultError(f"{len(orphans)} processes are left")

    def check(self) -> None:
        """Check the database against what it had before and against the printed lines."""
        state = self.state()
        promised = Counter(self.promised)
        if state.name is None:
            gone = {*promised, *self.recorded}
            self.tally.lost += len(gone)
            if gone:
                raise FaultError("the sweep is no longer in the database")
            return
        damage = faults_of(self.folder / self.db)
        with Store.open(self.folder / self.db, mode="write") as store:
            sizes = {cell.key: cell.bs for cell in store.planned(self.id)}
            trials = store.trials(self.id)
            results = store.results(self.id)
            store.rebuild_results(self.id)
            rebuilt = store.results(self.id)
        problems = self.compare(trials, sizes, promised)
        if damage:
            problems.append(f"damage: {damage}")
        if state.is_complete and rebuilt != results:
            problems.append("results differ from their trials")
        if state.is_complete and len(results) != CELLS:
            problems.append(f"results of {len(results)} cells")
        if problems:
            raise FaultError("; ".join(problems))

    def compare(
        self,
        trials: Sequence[StoredTrial],
        sizes: Mapping[str, int],
        promised: Counter[Place],
    ) -> list[str]:
        """Count the recorded trials, and return what is wrong with them. `sizes`: cell key -> batch
        size."""
        before = self.recorded
        self.recorded = {}
        for trial in trials:
            place = Place(sizes[trial.cell_key], trial.round)
            self.recorded[place] = Recorded(trial.id, str(trial.status))
        changed = {place for place, known in before.items() if self.recorded.get(place) != known}
        lost = changed | (promised.keys() - self.recorded.keys())
        twice = {place for place, count in promised.items() if count > 1}
        surplus = len(trials) - len(self.recorded)
        self.tally.committed += len(self.recorded)
        self.tally.lost += len(lost)
        self.tally.twice += len(twice) + surplus
        problems = self.harm(trials)
        if lost:
            problems.append(f"lost: {sorted(lost)}")
        if twice or surplus:
            problems.append(f"counted twice: {sorted(twice)}, and {surplus} trials too many")
        return problems

    def harm(self, trials: Sequence[StoredTrial]) -> list[str]:
        """Return what is wrong with the trials that are not ok: too many, or without a reason."""
        harmed = [trial for trial in trials if trial.status is not Status.OK]
        if len(harmed) <= self.harmed and all(trial.reason for trial in harmed):
            return []
        reasons = [(str(trial.status), trial.reason) for trial in harmed]
        return [f"harmed by {self.harmed} faults: {reasons}"]

    def finish(self) -> None:
        """Run the sweep to its end and check what is left of it."""
        if not self.is_running and not self.state().is_complete:
            self.start()
        until(lambda: not self.is_running, "the sweep is complete", 300)
        self.require_code({0})
        committed = self.tally.committed  # at the last fault
        self.settle()
        self.check()
        self.tally.committed = committed
        state = self.state()
        if not state.is_complete:
            raise FaultError(f"the sweep is {state.name}")
        if not self.promised:
            raise FaultError("no printed line is that of a trial, so that none could be checked")
        caches = list((self.folder / "cache" / "effbench" / "compile").glob("*/*/*"))
        if caches:
            raise FaultError(f"compile caches are left: {caches}")

    def close(self) -> None:
        """End all processes of the sweep, and remove what they left outside the folder."""
        for pid in [*self.marked(), *self.left()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait()
            self.reader.join(ORPHAN_S)
        self.make_writable()
        Path(f"/dev/shm/effbench-{self.folder.name}").unlink(missing_ok=True)
        if self.is_mounted:
            subprocess.run(["umount", "-l", self.folder / "results"], check=False)

    def make_writable(self) -> None:
        files = list((self.folder / "results").glob("*.db*"))
        subprocess.run(["chattr", "-i", *files], capture_output=True)
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a sweep that ends removes its log
                file.chmod(0o644)

    def act(self, name: str, rng: random.Random) -> None:
        """Make the model misbehave in one of the next trials."""
        file = self.folder / "act"
        file.write_text(f"{name} {rng.randrange(100)}")
        while file.exists():
            if not self.is_running:
                self.wait_moment(rng)
            until(lambda: not self.is_running or not file.exists(), name)

"""Inject faults into running sweeps, and check that nothing is lost, counted twice or left behind.

    python benchmarks/faults.py [--count 100] [--seed 0] [--first 0] [--jobs 2]

Several faults hit one sweep after the other. After each that ends the sweep, `resume=last`
continues it; the last time it runs to its end. The kind of a fault follows from its number, its
moment and variant from number and seed: `--first 17 --count 1` repeats fault 17 alone. The exit
code is 1 if a check failed. Needs Linux; as root it mounts a small file system for the full disk,
and makes a database immutable.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fault_sweep import CELLS, ORPHAN_S, SWEEP, TIMEOUT_S, TINY, FaultError, Sweep, Tally, until

from effbench.core.cell import StoredTrial
from effbench.core.table import Column, Table
from effbench.store import Store


def sends(target: str, name: str, sweep: Sweep, rng: random.Random, for_good: bool = False) -> None:
    """Send a signal; if it is SIGSTOP, send SIGCONT or SIGKILL later, unless `for_good`."""
    is_first = target == "orchestrator"
    sweep.wait_moment(rng, early=is_first)
    pid = None
    while pid is None:
        if not sweep.is_running:
            sweep.wait_moment(rng)
        pid = sweep.find(target)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.Signals[name])
        if name == "SIGSTOP" and not for_good:
            time.sleep(rng.uniform(0.1, 1.5))
            name = rng.choice(("SIGCONT", "SIGKILL"))
            os.kill(pid, signal.Signals[name])
    if is_first and name != "SIGCONT":
        sweep.ends(-signal.Signals[name], 130)
    else:
        sweep.goes_on()


def fills_disk(sweep: Sweep, rng: random.Random) -> None:
    sweep.wait_moment(rng)
    ballast = sweep.folder / "results" / "ballast"
    if sweep.is_mounted:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
    else:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(
                sweep.process.pid, resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY)
            )
    sweep.ends(2)
    ballast.unlink(missing_ok=True)


def locks_database(sweep: Sweep, rng: random.Random, seconds: float | None = None) -> None:
    """Lock the database for some time, or for so many seconds that the sweep gives up."""
    sweep.wait_moment(rng)
    database = sqlite3.connect(sweep.folder / sweep.db, timeout=60, isolation_level=None)
    with contextlib.closing(database) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds or rng.uniform(0.5, 3))
        if seconds:
            sweep.ends(2)
        connection.execute("ROLLBACK")
    if not seconds:
        sweep.goes_on()


def moves_database(sweep: Sweep, rng: random.Random) -> None:
    """Move the database away until the sweep has ended, which must say so."""
    sweep.wait_moment(rng)
    path = sweep.folder / sweep.db
    elsewhere = path.with_name("elsewhere.db")
    path.rename(elsewhere)
    sweep.ends(2)
    if "was moved" not in sweep.errors():
        raise FaultError(f"the reason is missing: {sweep.errors()[-500:]}")
    elsewhere.rename(path)


def protects_database(sweep: Sweep, rng: random.Random) -> None:
    """Make the database's files read-only: with root's rights immutable, otherwise by their
    permissions."""
    sweep.wait_moment(rng)
    # not the log's index, which is mapped into memory: the kernel would end the process with SIGBUS
    files = [
        str(path)
        for path in (sweep.folder / "results").glob("*.db*")
        if not path.name.endswith("-shm")
    ]
    if subprocess.run(["chattr", "+i", *files], capture_output=True).returncode:
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # a sweep that ends removes its log
                Path(file).chmod(0o444)
    # open files may stay writable
    until(lambda: not sweep.is_running, "the sweep ends or goes on", 10, required=False)
    if not sweep.is_running and sweep.process.returncode:
        sweep.require_code({2})
        sweep.settle()
        sweep.start()
        sweep.ends(2)
    sweep.make_writable()


def turns_clock(sweep: Sweep, rng: random.Random) -> None:
    """Turn the clock back by up to a day, and end the sweep, so that it is resumed before it
    began."""
    sweep.wait_moment(rng)
    (sweep.folder / "clock").write_text(str(-rng.uniform(600, 86_400)))
    sweep.goes_on()
    if sweep.is_running:
        sweep.process.terminate()
        sweep.ends(130)


def races(sweep: Sweep, rng: random.Random) -> None:
    """Start a second sweep on the same device and in the same database."""
    if sweep.is_running:  # both start anew, so that they meet
        sweep.process.terminate()
        sweep.ends(130, -signal.SIGTERM)
        sweep.settle()
    sweep.start()
    words = (*TINY, *SWEEP, "bs=1,2", "protocol.rounds=2", "sweep.name=rival", f"db={sweep.db}")
    with sweep.launch(*words, errors="stderr-rival") as rival:
        out, _ = rival.communicate(timeout=TIMEOUT_S)
    if rival.returncode:
        raise FaultError(
            f"the other sweep ended with {rival.returncode}: {out}{sweep.errors('stderr-rival')}"
        )
    with Store.open(sweep.folder / sweep.db) as store:
        ids = {one.name: one.id for one in store.sweeps()}
        mine = list(map(Span.of, store.trials(ids[None])))
        others = list(map(Span.of, store.trials(ids["rival"])))
    if len(others) != 4:
        raise FaultError(f"the other sweep has {len(others)} trials, not 4")
    if any(span.meets(other) for span, other in itertools.product(mine, others)):
        raise FaultError("trials of two sweeps ran at once on one device")


@dataclass(frozen=True)
class Span:
    """When a trial ran, in seconds."""

    begin_s: float
    end_s: float

    @classmethod
    def of(cls, trial: StoredTrial) -> Span:
        begin_s = dt.datetime.fromisoformat(trial.started_at).timestamp()
        return cls(begin_s, begin_s + trial.wall_s)

    def meets(self, other: Span) -> bool:
        return self.begin_s < other.end_s and other.begin_s < self.end_s


def loses_gpu(sweep: Sweep, rng: random.Random, for_good: bool = False) -> None:
    """Make a trial fail as on a lost GPU, and those after it, until the device is back."""
    sweep.wait_moment(rng)
    before = len(sweep.lines)
    sweep.act("loses-gpu", rng)
    lost = sweep.folder / "gpu-lost"
    if for_good:
        sweep.harmed += CELLS
        until(lambda: not sweep.is_running, "the sweep ends")
        sweep.require_code({0})
        lost.unlink(missing_ok=True)
        return

    def is_retried() -> bool:
        return any("retrying" in line for line in sweep.lines[before:])

    until(lambda: is_retried() or not sweep.is_running, "a retry")
    lost.unlink(missing_ok=True)
    sweep.goes_on()


def misbehaves(name: str, sweep: Sweep, rng: random.Random) -> None:
    sweep.wait_moment(rng)
    sweep.act(name, rng)
    sweep.goes_on()
    until(lambda: not sweep.left(), "processes that a trial left end", ORPHAN_S)


def ignores_sigterm(sweep: Sweep, rng: random.Random) -> None:
    """Send SIGTERM to a trial that ignores it, and then to the sweep."""
    file = sweep.folder / "ignoring"
    is_sent = False
    while not is_sent:  # on a busy machine the trial may end before
        file.unlink(missing_ok=True)
        sweep.wait_moment(rng)
        sweep.act("ignores-sigterm", rng)
        until(
            lambda: file.exists() and file.read_text(),
            "a trial ignores signals",
            30,
            required=False,
        )
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(int(file.read_text()), signal.SIGTERM)
            is_sent = True
    sweep.process.terminate()
    sweep.ends(130)


#: The kind of fault N is number N modulo their number. Those after `SLOW` take more than 20 s, or
#: resemble others.
KINDS: dict[str, Callable[[Sweep, random.Random], None]] = {
    "SIGKILL, orchestrator": partial(sends, "orchestrator", "SIGKILL"),
    "SIGKILL, fork server": partial(sends, "server", "SIGKILL"),
    "SIGKILL, worker": partial(sends, "worker", "SIGKILL"),
    "disk full": fills_disk,
    "clock jumps backwards": turns_clock,
    "invalid message of a worker": partial(misbehaves, "writes-garbage"),
    "SIGSTOP, worker": partial(sends, "worker", "SIGSTOP"),
    "database moved": moves_database,
    "two sweeps, one device": races,
    "model forks": partial(misbehaves, "forks"),
    "SIGSTOP, orchestrator": partial(sends, "orchestrator", "SIGSTOP"),
    "database locked": locks_database,
    "GPU lost": loses_gpu,
    "model ignores SIGTERM": ignores_sigterm,
    "database read-only": protects_database,
    "SIGTERM, worker": partial(sends, "worker", "SIGTERM"),
    "model daemonises": partial(misbehaves, "daemonises"),
    "SIGHUP, orchestrator": partial(sends, "orchestrator", "SIGHUP"),
    "model fills stdout": partial(misbehaves, "fills-stdout"),
    "model fills /dev/shm": partial(misbehaves, "fills-shm"),
    "SIGTERM, orchestrator": partial(sends, "orchestrator", "SIGTERM"),
    "SIGTERM, fork server": partial(sends, "server", "SIGTERM"),
    "SIGHUP, fork server": partial(sends, "server", "SIGHUP"),
    "SIGSTOP, fork server": partial(sends, "server", "SIGSTOP"),
    "SIGHUP, worker": partial(sends, "worker", "SIGHUP"),
    "SIGSTOP for good, fork server": partial(sends, "server", "SIGSTOP", for_good=True),
    "database locked for 35 s": partial(locks_database, seconds=35),
    "GPU lost for good": partial(loses_gpu, for_good=True),
}
SLOW = 15


def kind_of(number: int) -> str:
    return list(KINDS)[number % len(KINDS)]


@dataclass
class Injection:
    """Faults that hit sweeps in a folder, one after the other. `tallies`: kind -> its counts;
    `problems`: what failed."""

    folder: Path
    numbers: Sequence[int]
    seed: int
    sweep: Sweep | None = None
    tallies: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    problems: list[str] = field(default_factory=list)

    def run(self) -> Injection:
        """Inject the faults, and let the last sweep run to its end."""
        for number in self.numbers:
            self.attempt(f"fault {number}: {kind_of(number)}", partial(self.disturb, number))
        if self.sweep is not None:
            self.attempt("the end of the sweep", self.sweep.finish)
        if self.sweep is not None:
            self.sweep.close()
        return self

    def attempt(self, what: str, act: Callable[[], None]) -> None:
        """Do it; if that fails, note why, and give up the current sweep."""
        begin = time.monotonic()
        try:
            act()
        except Exception as error:
            line = f"{what}, seed {self.seed}: {type(error).__name__}: {error}"
            self.problems.append(line)
            if self.sweep is not None:
                self.sweep.close()
            self.sweep = None
        else:
            line = f"{what} ({time.monotonic() - begin:.0f} s)"
        print(line, file=sys.stderr, flush=True)

    def disturb(self, number: int) -> None:
        """Inject a fault, and check the sweep."""
        if self.sweep is None:
            self.sweep = self.new_sweep()
        sweep = self.sweep
        kind = kind_of(number)
        sweep.tally = self.tallies[kind]
        sweep.tally.injected += 1
        sweep.harmed += 1
        KINDS[kind](sweep, random.Random(f"{self.seed} {number}"))
        if not sweep.is_running:
            sweep.settle()
            if sweep.state().is_unfinished:
                sweep.to_resume.append(sweep.tally)
        sweep.check()

    def new_sweep(self) -> Sweep:
        """Return a sweep in a folder of its own; with root's rights, on a small file system if one
        of the faults fills the disk."""
        sweep = Sweep(self.folder / str(time.monotonic_ns()))
        if any(KINDS[kind_of(number)] is fills_disk for number in self.numbers):
            results = str(sweep.folder / "results")
            mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", results]
            sweep.is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
        return sweep


@dataclass(frozen=True)
class Counts:
    """What all faults led to. `tallies`: kind -> its counts; `problems`: what failed."""

    tallies: dict[str, Tally]
    problems: list[str]

    @property
    def total(self) -> Tally:
        """The counts of all kinds."""
        total = Tally()
        for tally in self.tallies.values():
            total.add(tally)
        return total


def inject(numbers: Sequence[int], seed: int = 0, jobs: int = 2, each: int = 5) -> Counts:
    """Inject these faults, `each` into one sweep and `jobs` sweeps at a time."""
    # a handler is not inherited; if SIGHUP were ignored (nohup), all processes would inherit that
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        injections = []
        for start in range(0, len(numbers), each):
            injections.append(Injection(Path(folder), numbers[start : start + each], seed))
        done = list(pool.map(Injection.run, injections))
    signal.signal(signal.SIGHUP, before)
    counts = Counts({kind: Tally() for kind in KINDS}, [])
    for injection in done:
        counts.problems.extend(injection.problems)
        for kind, tally in injection.tallies.items():
            counts.tallies[kind].add(tally)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    parser.add_argument("--jobs", type=int, default=2, help="sweeps at a time")
    args = parser.parse_args()
    counts = inject(range(args.first, args.first + args.count), args.seed, args.jobs)
    counted = {kind: tally for kind, tally in counts.tallies.items() if tally.injected}
    counted["all"] = counts.total
    headings = (
        "fault",
        "injected",
        "trials committed",
        "lost",
        "counted twice",
        "sweeps resumed",
        "orphans",
    )
    rows = [[kind, *vars(tally).values()] for kind, tally in counted.items()]
    print(Table.of([*map(Column, headings)], rows).render("markdown"))
    return int(bool(counts.problems))


if __name__ == "__main__":
    sys.exit(main())

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
from functools import partial
from pathlib import Path

from fault_sweep import CELLS, ORPHAN_S, SWEEP, TIMEOUT_S, TINY, FaultError, Sweep, Tally, until

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
    sweep.wait_moment(rng)
    with contextlib.closing(
        sqlite3.connect(sweep.folder / sweep.db, timeout=60, isolation_level=None)
    ) as connection:
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
        sweeps = {one.name: one.id for one in store.sweeps()}
        mine, other = (
            [
                (dt.datetime.fromisoformat(trial.started_at).timestamp(), trial.wall_s)
                for trial in store.trials(sweeps[name])
            ]
            for name in (None, "rival")
        )
    if len(other) != 4 or any(a < c + d and c < a + b for a, b in mine for c, d in other):
        raise FaultError("trials of two sweeps ran at once on one device")


def loses_gpu(sweep: Sweep, rng: random.Random, for_good: bool = False) -> None:
    """Make a trial fail as on a lost GPU, and those after it, until the device is back."""
    sweep.wait_moment(rng)
    before = len(sweep.lines)
    sweep.act("loses-gpu", rng)
    if for_good:
        sweep.harmed += CELLS
        until(lambda: not sweep.is_running, "the sweep ends")
        sweep.require_code({0})
    else:
        retried = lambda: any("retrying" in line for line in sweep.lines[before:])  # noqa: E731
        until(lambda: retried() or not sweep.is_running, "a retry")
    (sweep.folder / "gpu-lost").unlink(missing_ok=True)
    if not for_good:
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


def disturb(folder: Path, numbers: Sequence[int], seed: int) -> tuple[dict[str, Tally], list[str]]:
    """Run sweeps in `folder` with these faults, one after the other; return the counts of each kind
    and what failed."""
    tallies = {kind: Tally() for kind in KINDS}
    problems = []
    sweep = None
    for number in [*numbers, None]:
        start = time.monotonic()
        kind = "the end of the sweep" if number is None else kind_of(number)
        try:
            if sweep is None:
                sweep = Sweep(folder / str(time.monotonic_ns()))
                if any(KINDS[kind_of(other)] is fills_disk for other in numbers):
                    mount = [
                        "mount",
                        "-t",
                        "tmpfs",
                        "-o",
                        "size=32m",
                        "tmpfs",
                        sweep.folder / "results",
                    ]
                    sweep.is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
            if number is None:
                sweep.finish()
                break
            tally = sweep.tally = tallies[kind]
            tally.injected += 1
            sweep.harmed += 1
            KINDS[kind](sweep, random.Random(f"{seed} {number}"))
            if not sweep.is_running:
                sweep.settle()
                if sweep.state()[0] not in (None, "completed"):
                    sweep.to_resume.append(tally)
            sweep.check()
        except Exception as error:
            problems.append(
                f"fault {number} ({kind}), seed {seed}: {type(error).__name__}: {error}"
            )
            sweep.close()
            sweep = None
            print(problems[-1], file=sys.stderr, flush=True)
            if number is None:
                break
        else:
            print(
                f"fault {number}: {kind} ({time.monotonic() - start:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
    if sweep:
        sweep.close()
    return tallies, problems


def inject(
    numbers: Sequence[int], seed: int = 0, jobs: int = 2, each: int = 5
) -> tuple[dict[str, Tally], list[str]]:
    """Inject these faults, `each` into one sweep and `jobs` sweeps at a time."""
    # a handler is not inherited; if SIGHUP were ignored (nohup), all processes would inherit that
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        parts = [numbers[start : start + each] for start in range(0, len(numbers), each)]
        done = list(pool.map(lambda part: disturb(Path(folder), part, seed), parts))
    signal.signal(signal.SIGHUP, before)
    tallies = {kind: sum((tallies[kind] for tallies, _ in done), Tally()) for kind in KINDS}
    return tallies, [problem for _, some in done for problem in some]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="number of faults")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first fault")
    parser.add_argument("--jobs", type=int, default=2, help="sweeps at a time")
    args = parser.parse_args()
    tallies, problems = inject(range(args.first, args.first + args.count), args.seed, args.jobs)
    counted = {kind: tally for kind, tally in tallies.items() if tally.injected}
    counted["all"] = sum(counted.values(), Tally())
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
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

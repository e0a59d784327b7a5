"""How undisturbed the host is while a step is timed, read between batches of samples.

Two things are read. The kernel knows how long this process's threads waited for a core, because
other processes ran there. Fixed work on this thread shows what the kernel does not see: a host that
slows down because of its other virtual machines.

- On a GPU the calling thread is what matters. The host of a shared machine slows down for seconds
  at a time, and launch-bound latency follows the fixed work. A batch is undisturbed if the work
  before and after it took little longer than in this machine's quietest moments.
- On the CPU every thread of the step matters, since threads wait for the slowest one. Fixed work of
  one thread says little there: on an idle virtual machine it has two levels of its own, and the
  step does not follow them. So the kernel decides, and the fixed work only counts when it is slower
  than it ever is on this machine.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from effbench.measure.samples import FEWEST_SAMPLES, SAME

#: Loops of a piece of work: some 30 µs of bytecode, calls and allocations.
LOOPS = 400
#: Quantiles of a trial's readings that count as its quietest and as its slower moments.
LOW, HIGH = 0.1, 0.9
#: Readings before the first sample, and the number of new ones after which their quantile is
#: computed again.
FIRST, EVERY = 20, 50
#: Fraction of a batch that the calling thread of a GPU may wait for a core.
WAITED = 0.02
#: The same fraction for all threads of the CPU together, as a part of the tolerance. Waiting delays
#: a call by at most this much, and long calls always meet some process of the system.
PART_OF_TOLERANCE = 0.5
#: Time slice of Linux's scheduler in ms: what a preemption costs if the kernel does not count
#: waiting.
SLICE_MS = 3.0
#: Readings of the waiting time after which new threads are looked for.
LOOK_AGAIN = 50
#: Threads of a process that are watched: a reading takes 2 µs per thread.
MOST_THREADS = 128
#: Seconds of disturbed batches after which a quieter core is chosen, and the pause before the next
#: attempt.
MOVE_AFTER_S, PAUSE_S = 0.1, 0.02
TASKS = Path("/proc/self/task")
STATISTICS = Path("/proc/stat")
#: Ratio of the quartiles of the fixed work from which the host has changed its speed: times that
#: depend on it follow by more than half of that.
CHANGED = 1.1
#: Tolerance from which a protocol does not ask for an undisturbed host.
ANYTHING = 2.0
#: Columns of a core's line in `/proc/stat` in which it works: user, nice, system, interrupts.
WORKING = (0, 1, 2, 5, 6)
#: The column of the time that a hypervisor gave to other virtual machines.
STOLEN = 7


@dataclass(frozen=True)
class Reading:
    """The host between two batches. `work_ms`: time of the fixed work; `waited_ms`: how long
    threads of this process have waited for a core so far."""

    work_ms: float
    waited_ms: float


def piece() -> float:
    """Run the fixed work and return its milliseconds."""
    start = time.perf_counter_ns()
    total = 0
    for number in range(LOOPS):
        total += len([number, total])
    return (time.perf_counter_ns() - start) / 1e6


def quartile_ratio(values: Sequence[float]) -> float:
    """Return the upper quartile of some times ÷ the lower one."""
    low, high = np.quantile(values, (0.25, 0.75))
    return float(high / low)


class RunQueue:
    """How long threads have waited for a core because others ran there, as the kernel's scheduler
    counts it.

    `all_threads`: of this whole process, else only of the calling thread. Where the kernel does not
    count waiting, as in some sandboxes, preemptions of the process count with a time slice each.
    """

    def __init__(self, all_threads: bool) -> None:
        self.all_threads = all_threads
        self.files: dict[int, int] = {}  # thread -> descriptor of its statistics
        self.waited_ns: dict[int, int] = {}
        self.reads = 0
        self.find_threads()
        self.is_counted = self.kernel_counts()

    def find_threads(self) -> None:
        """Open the statistics of threads that are not known yet, this one first."""
        this = threading.get_native_id()
        threads = [this]
        if self.all_threads:
            with suppress(OSError):  # a container without /proc
                threads += sorted({int(task.name) for task in TASKS.iterdir()} - {this})
        for thread in threads[:MOST_THREADS]:
            if thread in self.files:
                continue
            path = TASKS / str(thread) / "schedstat"
            # the thread may have ended, or the kernel has no such statistics
            with suppress(OSError):
                self.files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def kernel_counts(self) -> bool:
        """Return whether the kernel counts waiting. Otherwise it has no statistics, or they are all
        zero."""
        try:
            file = self.files[threading.get_native_id()]
            time_slices = int(os.pread(file, 100, 0).split()[2])
        except (KeyError, OSError, IndexError, ValueError):
            return False
        return time_slices > 0

    def read_ms(self) -> float:
        """Return how long the threads have waited so far."""
        if not self.is_counted:
            return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * SLICE_MS
        self.reads += 1
        if self.all_threads and self.reads % LOOK_AGAIN == 0:
            self.find_threads()
        for thread, file in list(self.files.items()):
            try:
                text = os.pread(file, 100, 0)
                self.waited_ns[thread] = int(text.split()[1])
            # the thread has ended; its waiting still counts
            except (OSError, IndexError, ValueError):
                os.close(file)
                del self.files[thread]
        return sum(self.waited_ns.values()) / 1e6

    def close(self) -> None:
        for file in self.files.values():
            os.close(file)
        self.files.clear()


@dataclass(frozen=True)
class CoreTimes:
    """Seconds since the machine started in which cores worked, and in which they had work, but the
    hypervisor ran another virtual machine."""

    working_s: float
    stolen_s: float


def core_times(cores: Collection[int]) -> CoreTimes:
    """Return the times of these cores together; zeros if the kernel does not tell."""
    names = {f"cpu{core}" for core in cores}
    working = stolen = 0
    try:
        lines = STATISTICS.read_text().splitlines()
    except OSError:  # a container without /proc
        lines = []
    for line in lines:
        name, *fields = line.split()
        if name in names:
            working += sum(int(fields[column]) for column in WORKING)
            stolen += int(fields[STOLEN])
    ticks = os.sysconf("SC_CLK_TCK")
    return CoreTimes(working / ticks, stolen / ticks)


@dataclass(frozen=True)
class CoreUse:
    """What others took of the seconds of some cores (`cores_s`, the sum of all): other processes
    (`others_s`) and other virtual machines (`stolen_s`)."""

    cores_s: float
    others_s: float
    stolen_s: float

    def without(self, partners_s: float) -> CoreUse:
        """Return this use if processes that used the cores for so many seconds are no others."""
        return replace(self, others_s=max(0.0, self.others_s - partners_s))

    @property
    def others_fraction(self) -> float:
        return self.others_s / self.cores_s

    @property
    def stolen_fraction(self) -> float:
        return self.stolen_s / self.cores_s


class CoreClock:
    """Measures what runs on some cores, from now on."""

    def __init__(self, cores: Collection[int]) -> None:
        self.cores = cores
        self.began_s = time.perf_counter()
        self.before = core_times(cores)
        self.process_began_s = time.process_time()

    def read(self) -> CoreUse:
        """Return what has run there so far. Others are all processes but this one."""
        now = core_times(self.cores)
        own_s = time.process_time() - self.process_began_s
        return CoreUse(
            (time.perf_counter() - self.began_s) * len(self.cores),
            now.working_s - self.before.working_s - own_s,
            now.stolen_s - self.before.stolen_s,
        )


@dataclass(frozen=True)
class HostFacts:
    """The host while a step was timed.

    `low_ms`, `high_ms`: time of the fixed work in quiet and in slower moments; `high_ms`: None if
    no batch was without waiting. `disturbed_fraction`: of the timed seconds; None if nothing was
    timed. `others_fraction`, `stolen_fraction`: of the cores' time, taken by other processes and by
    other virtual machines. `all_cores_matter`: on the CPU, unless the user tolerates anything.
    """

    low_ms: float
    high_ms: float | None = None
    disturbed_fraction: float | None = None
    others_fraction: float = 0.0
    stolen_fraction: float = 0.0
    all_cores_matter: bool = False


@dataclass(eq=False)
class HostWatch:
    """Tells undisturbed batches from disturbed ones during one trial.

    `quiet_ms`: the undisturbed time of the fixed work on this machine; `usual_high_ms`: its time in
    the slower moments of undisturbed trials, on the CPU; None if no trial has measured it.
    `tolerance`: the work may take this many times longer. `moves`: whether this thread may choose
    its core. `all_threads`: whether the step runs on the CPU, on any number of threads. `waits`:
    whether to pause or to choose another core after a while of disturbed batches.
    """

    quiet_ms: float | None
    tolerance: float
    moves: bool
    all_threads: bool = False
    usual_high_ms: float | None = None
    waits: bool = True

    def __post_init__(self) -> None:
        self.run_queue = RunQueue(self.all_threads)
        self.works_ms: list[float] = []  # of all readings
        self.slow_works_ms: list[float] = []  # of disturbed batches
        self.calm_works_ms: list[float] = []  # after batches without waiting
        self.undisturbed_s = self.disturbed_s = 0.0  # of all batches
        self.limit_ms = 0.0
        self.unquiet_s = 0.0  # seconds of disturbed batches since the last undisturbed one

    @contextmanager
    def watching(self) -> Iterator[HostWatch]:
        """Choose the quietest core, yield this, and give the thread its cores back afterwards."""
        self.cores = os.sched_getaffinity(0)
        if self.moves:
            self.choose_core()
        for _ in range(FIRST):
            self.read()
        clock = CoreClock(self.cores)
        try:
            yield self
        finally:
            self.use = clock.read()
            os.sched_setaffinity(0, self.cores)
            self.run_queue.close()

    def read(self) -> Reading:
        """Run the fixed work, and return the reading."""
        # the faster of two: the first one warms the core's cache again
        work_ms = min(piece(), piece())
        self.works_ms.append(work_ms)
        if len(self.works_ms) % EVERY == 0 or len(self.works_ms) == FIRST:
            self.limit_ms = self.work_limit_ms()
        return Reading(work_ms, self.run_queue.read_ms())

    def begin(self) -> None:
        """Take the reading before a batch."""
        self.last = self.read()

    def was_undisturbed(self, seconds: float, waited_ms: float = 0.0) -> bool:
        """Return whether the batch since the last reading counts. `seconds`: how long it took;
        `waited_ms`: how long threads of another process, a partner, waited for a core."""
        before, self.last = self.last, self.read()
        after = Reading(self.last.work_ms, self.last.waited_ms + waited_ms)
        return self.is_undisturbed(before, after, seconds)

    def work_limit_ms(self) -> float:
        """Return how long the fixed work may take in an undisturbed moment."""
        if not self.all_threads:
            return self.tolerance * self.quietest_ms
        if self.usual_high_ms is None:  # what is normal on this machine is unknown
            return float("inf")
        return self.tolerance * self.usual_high_ms

    def is_undisturbed(self, before: Reading, after: Reading, seconds: float) -> bool:
        """Return whether the batch between two readings counts. `seconds`: how long it took."""
        waited_ms = after.waited_ms - before.waited_ms
        allowed = WAITED
        if self.all_threads:
            allowed = PART_OF_TOLERANCE * (self.tolerance - 1)
        is_alone = waited_ms <= allowed * 1000 * seconds
        if is_alone:
            self.calm_works_ms.append(after.work_ms)
        work_ms = max(before.work_ms, after.work_ms)
        if is_alone and work_ms <= self.limit_ms:
            self.undisturbed_s += seconds
            self.unquiet_s = 0.0
            return True
        self.slow_works_ms.append(work_ms)
        self.disturbed_s += seconds
        self.unquiet_s += seconds
        return False

    def calm(self) -> None:
        """If the host has been disturbed for a while, choose a quieter core, or wait."""
        if self.unquiet_s < MOVE_AFTER_S or not self.waits:
            return
        self.unquiet_s = 0.0
        if self.moves:
            self.choose_core()
        time.sleep(PAUSE_S)

    def choose_core(self) -> None:
        """Run this thread on the core where the work is fastest."""
        speeds = {}
        for core in self.cores:
            os.sched_setaffinity(0, {core})
            speeds[core] = min(piece() for _ in range(3))
        os.sched_setaffinity(0, {min(speeds, key=speeds.__getitem__)})

    @property
    def low_ms(self) -> float:
        """The time of the work in this trial's quietest moments."""
        return float(np.quantile(self.works_ms, LOW))

    @property
    def quietest_ms(self) -> float:
        """The time of the work in the quietest moments of this and earlier trials."""
        low_ms = self.low_ms
        return min(low_ms, self.quiet_ms or low_ms)

    @property
    def slowdown(self) -> float:
        """How many times longer the fixed work took in disturbed batches than in the quietest
        moments, at least 1."""
        if self.all_threads or not self.slow_works_ms:
            return 1.0
        return max(1.0, median(self.slow_works_ms) / self.quietest_ms)

    def is_ignored_by(self, disturbed: Sequence[float]) -> bool:
        """Return whether these samples of disturbed moments do not depend on the host's speed: it
        changed meanwhile, and they did not."""
        if len(disturbed) < FEWEST_SAMPLES or not self.slow_works_ms:
            return False
        has_changed = quartile_ratio(self.slow_works_ms) >= CHANGED
        return has_changed and quartile_ratio(disturbed) <= 1 + SAME

    def facts(self, partner_s: float = 0.0) -> HostFacts:
        """Return what was found; call this after `watching`. `partner_s`: seconds for which the
        other member of a duet used the cores."""
        high_ms = disturbed_fraction = None
        if self.calm_works_ms:
            high_ms = float(np.quantile(self.calm_works_ms, HIGH))
        timed_s = self.undisturbed_s + self.disturbed_s
        if timed_s:
            disturbed_fraction = self.disturbed_s / timed_s
        use = self.use.without(partner_s)
        return HostFacts(
            self.low_ms,
            high_ms,
            disturbed_fraction,
            use.others_fraction,
            use.stolen_fraction,
            all_cores_matter=self.all_threads and self.tolerance < ANYTHING,
        )

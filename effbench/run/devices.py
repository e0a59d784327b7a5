"""Devices that run one trial at a time: GPUs and the CPU, with their locks and CPU cores. How long
a trial may wait for its GPU: see `wait_for_device`."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, combinations

from effbench.core.cell import Cell
from effbench.core.cores import parse_cores, physical_cores
from effbench.core.errors import WorkerError
from effbench.core.message import ProbedGpu
from effbench.core.parallel import NONE, Parallel
from effbench.core.settings import Executor
from effbench.run.interrupts import POLL_S, StoppedError

LOGGER = logging.getLogger(__name__)
#: With at least this many physical cores for a GPU, the first core is left to the sweep and the
#: system.
SPARE_FROM = 4
#: Errors that pass: the machine has too many processes or open files, or too little memory.
TRANSIENT = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
#: Initializes the CUDA driver, without a context, until its standard input ends.
HOLD_DRIVER = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').cuInit(0); sys.stdin.read()"


@dataclass(frozen=True)
class Slot:
    """A GPU or the CPU. All effbench processes of a machine share one lock per device, across
    users.

    `index`, `uuid`: of the GPU, None for the CPU; `visible`: the value of CUDA_VISIBLE_DEVICES that
    selects it. `cores`: those of its trials; None: no pinning. `ranks`: the slot of each process
    of a trial that uses several devices; the slot's other fields are those of the first one.
    `other`: a second GPU for a trial that changes its GPU.
    """

    name: str
    device: str
    index: int | None = None
    uuid: str | None = None
    visible: str = ""
    cores: list[int] | None = None
    ranks: Sequence[Slot] = ()
    other: Slot | None = None

    @property
    def devices(self) -> list[Slot]:
        """The devices to lock. All processes of a machine lock several in this order, so that none
        waits for one that waits for it."""
        by_uuid = {slot.uuid or "": slot for slot in self.ranks or [self]}
        if self.other is not None:
            by_uuid[self.other.uuid or ""] = self.other
        return [by_uuid[uuid] for uuid in sorted(by_uuid)]

    @property
    def is_gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def env(self) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self.visible}

    def try_lock(self) -> socket.socket | None:
        """Lock the device, and return what holds the lock until it is closed, or its process ends;
        None if the device cannot be locked at the moment.

        The lock is a name in Linux's abstract namespace of sockets, which has no file that another
        user could own or replace. Processes with another temporary folder or network namespace
        have other locks. Raises WorkerError if the system refuses it.
        """
        folder = hashlib.sha256(os.fsencode(tempfile.gettempdir())).hexdigest()[:16]
        lock = None
        try:
            lock = socket.socket(socket.AF_UNIX)
            lock.bind(f"\0effbench-{folder}-{self.uuid or 'cpu'}")
        except OSError as error:
            if lock is not None:
                lock.close()
            if error.errno in {errno.EADDRINUSE, *TRANSIENT}:
                return None
            raise WorkerError(f"cannot lock {self.name}: {error.strerror or error}") from error
        return lock


def log_waiting(name: str) -> None:
    LOGGER.info("waiting for %s, which another effbench uses", name)


def wait_for_device(
    slot: Slot,
    stop: threading.Event,
    timeout_s: float = Executor.lock_timeout_s,
    waiting: Callable[[str], None] = log_waiting,
) -> socket.socket:
    """Lock the device of the slot, and return its lock (see `Slot.try_lock`); wait for at most
    `timeout_s` (`executor.lock_timeout_s`, 1 hour by default) if another effbench has it. `waiting`
    is called with the slot's name if it has to wait.

    This is one of three waits of a trial for its GPU, in this order. In a duet, only the leader has
    the second and the third; the other member waits for it, without a limit of its own. Jobs of
    SLURM first wait in its queue.

    1. Trials on the CPU and on GPUs take turns, trials of one cell do not overlap, and a trial that
       uses several GPUs collects them, for as long as others run: `TrialQueue.take`
       (run/schedule.py).
    2. Here, for another effbench, before the trial's process starts: it does not count towards
       `timeout_s` of the trial.
    3. In the trial's process, for a foreign program on the GPU: `GpuWatch.wait_until_free`
       (measure/watch.py). It ends after `executor.foreign_wait_s` (30 s by default), at least a
       second; then the trial is timed and marked. It counts towards `timeout_s`.

    Raises StoppedError if `stop` is set first, and WorkerError if the device cannot be locked, or
    not in time, which ends the sweep.
    """
    deadline = time.monotonic() + timeout_s
    lock = slot.try_lock()
    if lock is None:
        waiting(slot.name)
    while lock is None:
        if stop.wait(POLL_S):
            raise StoppedError
        if time.monotonic() > deadline:
            raise WorkerError(
                f"{slot.name} was in use by another effbench for {timeout_s:.0f} s "
                "(executor.lock_timeout_s); resume later with resume=last"
            )
        lock = slot.try_lock()
    return lock


def gpu_slot(gpu: ProbedGpu, cores: list[int] | None = None) -> Slot:
    """Return the slot of a GPU."""
    return Slot(
        f"GPU {gpu.index}",
        "cuda",
        gpu.index,
        gpu.uuid,
        gpu.visible,
        cores,
    )


def slots_of(gpus: Sequence[ProbedGpu], cells: Iterable[Cell]) -> list[Slot]:
    """Return the GPUs with their cores, and the CPU, as far as these cells use them; the CPU if
    there is no other device."""
    devices = {cell.device for cell in cells}
    slots: list[Slot] = []
    if "cuda" in devices:
        slots += map(gpu_slot, gpus, share_cores(gpus))
    # a CPU cell uses all cores, because its threads are part of the measurement
    if "cpu" in devices or not slots:
        slots.append(Slot("CPU", "cpu"))
    return slots


# --- several devices ---


def device_count(cell: Cell) -> int:
    """Return the number of devices that a trial of this cell needs: one for each of its ranks."""
    if cell.change == "gpu":  # it makes a cache on one, and uses it on the other
        return 2
    parallel = Parallel.parse(cell.parallel or NONE)
    return parallel.size if parallel else 1


def lacking_devices(cell: Cell, slots: Iterable[Slot]) -> str | None:
    """Return why no trial of this cell can have the devices that it needs, or None. `slots`: all of
    this machine."""
    size, unit = device_count(cell), "physical cores"
    if size == 1:
        return None
    setting = f"parallel={cell.parallel}"
    if cell.change == "gpu":
        setting = "coldstart.change=gpu"
        if cell.device != "cuda":
            return f"{setting} needs device=cuda, not {cell.device}"
    found = len(physical_cores(os.sched_getaffinity(0)))
    if cell.device == "cuda":
        unit = "GPUs"
        found = sum(slot.is_gpu for slot in slots)
    if found >= size:
        return None
    return f"{setting} needs {size} {unit}; this machine has {found}"


def joined_slot(cell: Cell, slots: Sequence[Slot]) -> Slot:
    """Return the slot of a trial of this cell: that of its ranks, if the cell has several. On GPUs
    each has one of these slots, on the CPU an equal part of the physical cores."""
    size = device_count(cell)
    if size == 1:
        return slots[0]
    if cell.change == "gpu":
        first, second = sorted(slots[:2], key=lambda slot: slot.index or 0)
        return replace(first, name=f"{first.name}, {second.name}", other=second)
    ranks = cpu_ranks(slots[0], size)
    if cell.device == "cuda":
        ranks = gpu_ranks(slots[:size])
    name = ", ".join(dict.fromkeys(rank.name for rank in ranks))
    return replace(ranks[0], name=name, ranks=ranks)


def gpu_ranks(slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots of ranks on these GPUs. Each rank sees its own GPU first, and then the
    others, from which it can read directly."""
    ordered = sorted(slots, key=lambda slot: slot.index or 0)
    ranks = []
    for slot in ordered:
        others = [other.visible for other in ordered if other is not slot]
        ranks.append(replace(slot, visible=",".join([slot.visible, *others])))
    return ranks


def cpu_ranks(slot: Slot, size: int) -> list[Slot]:
    """Return the slots of this many ranks on the CPU."""
    cores = physical_cores(os.sched_getaffinity(0))
    part = len(cores) // size
    shares = [cores[rank * part : (rank + 1) * part] for rank in range(size)]
    return [replace(slot, cores=sorted(chain(*share))) for share in shares]


@contextmanager
def held_driver(slots: Iterable[Slot]) -> Iterator[None]:
    """Keep the CUDA driver initialized for these GPUs in this context. The first process that uses
    a GPU, and the last one, make the driver do work that all others of the machine wait for;
    without this, every trial is both."""
    visible = [slot.visible for slot in slots if slot.is_gpu]
    if not visible:
        yield
        return
    try:
        # in a session of its own, which Ctrl-C does not reach; if effbench is killed, the end of
        # its input ends it
        holder = subprocess.Popen(
            [sys.executable, "-IS", "-c", HOLD_DRIVER],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(visible)},
            start_new_session=True,
        )
    except OSError:  # such as too many processes: the sweep only takes longer
        yield
        return
    with holder:
        try:
            yield
        finally:
            holder.kill()


# --- CPU cores ---

#: The hardware threads of a physical core.
Core = tuple[int, ...]


def share_cores(gpus: Sequence[ProbedGpu]) -> list[list[int] | None]:
    """Return the cores for the trials of each GPU; None, which means no pinning, if there are more
    GPUs than cores.

    GPUs near the same physical cores (on their bus) divide them evenly. If the near cores of two
    GPUs overlap only in part, all GPUs divide all cores. A GPU with enough cores leaves the first
    one to the sweep, its fork server and most interrupts.
    """
    cores = physical_cores(os.sched_getaffinity(0))
    near = [near_cores(gpu, cores) for gpu in gpus]
    for first, second in combinations(near, 2):
        if first != second and not set(first).isdisjoint(second):
            near = [cores] * len(gpus)
    shares: list[list[int] | None] = []
    for index, shared in enumerate(near):
        size = len(shared) // near.count(shared)
        rank = near[:index].count(shared)
        part = shared[rank * size : (rank + 1) * size]
        if len(part) >= SPARE_FROM and part[0] == cores[0]:
            part = part[1:]
        shares.append(sorted(chain(*part)) or None)
    return shares


def near_cores(gpu: ProbedGpu, cores: list[Core]) -> list[Core]:
    """Return the physical cores near a GPU; all if the machine does not tell."""
    try:
        near = set(parse_cores(gpu.near_cores or ""))
    except ValueError:
        return cores
    return [core for core in cores if not near.isdisjoint(core)] or cores

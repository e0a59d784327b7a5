"""Devices: their locks, the CPU cores of each GPU, and the CUDA driver."""

import errno
import os
import subprocess
import sys
import time
from unittest.mock import Mock

import pytest

from effbench.core import processes
from effbench.core.cores import parse_cores, physical_cores
from effbench.core.errors import WorkerError
from effbench.core.message import ProbedGpu
from effbench.run import devices
from effbench.run.devices import Slot, share_cores

ALL = range(16)
CPU = Slot("CPU", "cpu")


# --- locks ---


def test_a_lock_is_held_until_it_is_closed():
    with CPU.try_lock():
        assert CPU.try_lock() is None
        Slot("GPU 0", "cuda", uuid="GPU-0").try_lock().close()
    CPU.try_lock().close()


def test_a_lock_ends_with_its_process_whoever_ran_it(tmp_path):
    code = (
        "import tempfile, time; from effbench.run.devices import Slot;"
        f" tempfile.tempdir = {str(tmp_path)!r};"
        " lock = Slot('CPU', 'cpu').try_lock(); print(lock is not None, flush=True);"
        " time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"True\n"
        assert CPU.try_lock() is None
        other.kill()
    CPU.try_lock().close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOMEM])
def test_errors_that_pass_are_waited_for(monkeypatch, number):
    monkeypatch.setattr("socket.socket", Mock(side_effect=OSError(number, os.strerror(number))))
    assert CPU.try_lock() is None


def test_a_lock_that_the_system_refuses_is_an_error(monkeypatch):
    refuse = Mock(side_effect=PermissionError(errno.EACCES, "Permission denied"))
    monkeypatch.setattr("socket.socket", refuse)
    with pytest.raises(WorkerError, match="cannot lock CPU: Permission denied"):
        CPU.try_lock()


# --- CPU cores ---


def gpus(*near):
    return [
        ProbedGpu(index, f"GPU-{index}", str(index), "H200", 0, cores)
        for index, cores in enumerate(near)
    ]


#: Threads that share a core, numbered by core and then by thread, and the other way round.
BY_CORE, BY_THREAD = ["0,4", "1,5", "2,6", "3,7"], ["0-1", "2-3", "4-5", "6-7"]


@pytest.mark.parametrize(
    ("siblings", "near", "usable", "shares"),
    [
        # two sockets: each GPU on its own side
        (
            [],
            ["8-15", "0-7", "8-15"],
            ALL,
            [[8, 9, 10, 11], [*range(1, 8)], [*range(12, 16)]],
        ),
        # near cores that we may not use: any that we may
        ([], ["8-15"], range(4), [[1, 2, 3]]),
        ([], ["0-15", "0-15"], [2, 3, 8, 9], [[2, 3], [8, 9]]),
        # more GPUs than cores: no pinning
        ([], ["0", "0"], [0], [None, None]),
        # near cores that overlap in part: all share all
        ([], ["", "0-7"], ALL, [list(range(1, 8)), list(range(8, 16))]),
        # a physical core serves one GPU; the first core is spared only where a GPU has four
        (BY_THREAD, [None], range(8), [[2, 3, 4, 5, 6, 7]]),
        # two GPUs on each node
        (
            BY_CORE,
            ["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"],
            range(8),
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
    ],
)
def test_physical_cores_are_divided_among_the_gpus_near_them(
    monkeypatch, tmp_path, siblings, near, usable, shares
):
    for line in siblings:
        for thread in parse_cores(line):
            folder = tmp_path / f"cpu{thread}" / "topology"
            folder.mkdir(parents=True)
            (folder / "thread_siblings_list").write_text(f"{line}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(usable))
    monkeypatch.setattr(devices, "physical_cores", lambda cores: physical_cores(cores, tmp_path))
    assert share_cores(gpus(*near)) == shares


# --- the CUDA driver ---

DRIVER = """
#include <stdio.h>
#include <stdlib.h>
int cuInit(unsigned flags) {
    FILE *file = fopen(getenv("CALLS"), "a");
    fprintf(file, "cuInit(%u) of %s\\n", flags, getenv("CUDA_VISIBLE_DEVICES"));
    return fclose(file);
}
"""


SWEEP = """
import time
from effbench.run.devices import Slot, held_driver

slots = [Slot("GPU 1", "cuda", visible="1"), Slot("GPU 3", "cuda", visible="3"), Slot("CPU", "cpu")]
with held_driver(slots):
    print(flush=True)
    time.sleep(600)
"""


def test_the_driver_stays_initialized_for_the_gpus_until_the_sweep_ends(tmp_path, wait_gone):
    """Ctrl-C does not reach the process that holds it, which ends with a sweep that is killed."""
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-o", "libcuda.so.1", "driver.c"], cwd=tmp_path, check=True)
    calls = tmp_path / "calls"
    calls.touch()
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "CALLS": str(calls)}
    command = [sys.executable, "-c", SWEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as sweep:
        sweep.stdout.readline()
        (holder,) = processes.descendants(sweep.pid)
        while not calls.read_text():
            time.sleep(0.01)
        assert calls.read_text() == "cuInit(0) of 1,3\n"
        assert processes.process_table()[holder] == (sweep.pid, holder)
        sweep.kill()
    wait_gone(holder)


def test_a_process_that_cannot_start_does_not_end_the_sweep(monkeypatch):
    refuse = Mock(side_effect=BlockingIOError(errno.EAGAIN, "too many processes"))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with devices.held_driver([Slot("GPU 0", "cuda", visible="0")]):
        assert refuse.called

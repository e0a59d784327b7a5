"""A model that misbehaves once, as the file `act` in the folder of the sweep says; faults.py writes
this file."""

import ctypes
import os
import resource
import signal
import stat
import subprocess
import time
from pathlib import Path

import torch

FOLDER = Path(os.environ["EFFBENCH_FAULTS"])
ACT = FOLDER / "act"
SHM = Path("/dev/shm")
CLONE_NEWNS = 0x20000


class Victim(torch.nn.Module):
    """Twice its input."""

    def forward(self, x):
        if ACT.exists():
            name, _, variant = ACT.read_text().partition(" ")
            ACT.unlink()
            ACTS[name](int(variant or 0))
        return x * 2


def leave(*words, **options):
    """Start a process that outlives this one, and write down its pid."""
    with (FOLDER / "left").open("a") as file:
        print(subprocess.Popen(words, **options).pid, file=file)


def forks(variant):
    leave("sleep", "1000", start_new_session=variant % 2 == 0)
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
    with (FOLDER / "left").open("a") as file:
        print(pid, file=file)


def daemonises(variant):
    """Leave a process without parent, session, output and environment."""
    if os.fork() == 0:
        os.setsid()
        leave(
            "sleep",
            "1000",
            start_new_session=True,
            env={},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os._exit(0)
    os.wait()


def ignores_sigterm(variant):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (FOLDER / "ignoring").write_text(str(os.getpid()))
    time.sleep(1000)


def fills_stdout(variant):
    for _ in range(50):
        os.write(1 + variant % 2, b"x" * 1_000_000)


def fills_shm(variant):
    """Fill /dev/shm, in a small one of this process alone if that is allowed, and then need some of
    it."""
    libc = ctypes.CDLL(None)
    private = (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(b"none", b"/", None, 1 << 18 | 1 << 14, None) == 0
    )
    if not private or libc.mount(b"tmpfs", str(SHM).encode(), b"tmpfs", 0, b"size=4m") != 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
    try:
        with (SHM / f"effbench-{FOLDER.name}").open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * (1 << 16))
    except OSError:
        torch.zeros(1 << 23, dtype=torch.uint8).share_memory_()


def writes_garbage(variant):
    """Write to the pipe of this trial's messages: no message, half a message, or another trial's
    record."""
    numbers = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > 2]
    (pipe,) = [
        fd
        for fd in numbers
        if Path(f"/proc/self/fd/{fd}").exists() and stat.S_ISFIFO(os.fstat(fd).st_mode)
    ]
    texts = (
        b"hello\n",
        b"\xff\0" * 5000 + b"\n",
        b'{"v":1,"result":{"latency_ms":1',
        b'{"v":1,"result":{}}\n',
        b"x" * 70_000,
    )
    os.write(pipe, texts[variant % len(texts)])
    os._exit(0)


def loses_gpu(variant):
    (FOLDER / "gpu-lost").touch()
    raise RuntimeError("CUDA error: unspecified launch failure")


ACTS = {
    name: globals()[name.replace("-", "_")]
    for name in (
        "forks",
        "daemonises",
        "ignores-sigterm",
        "fills-stdout",
        "fills-shm",
        "writes-garbage",
        "loses-gpu",
    )
}

"""Modules and modes of a user that do what they should not; imported by cells, not by the tests."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from effbench.modes.base import Prepared


def orphan():
    """The pid of a process whose parent has ended, in a session of its own."""
    subprocess.run(["setsid", "sh", "-c", "sleep 1000 & echo $! >orphan"], check=True)
    return int(Path("orphan").read_text())


class Base(nn.Module):
    """Twice its input, after some mischief."""

    def mischief(self, x):
        pass

    def forward(self, x):
        self.mischief(x)
        return x * 2


class Raises(Base):
    def mischief(self, x):
        raise ValueError("bad weather\nand a second line")


class Interrupts(Base):
    def mischief(self, x):
        raise KeyboardInterrupt


class Leaves(Base):
    def mischief(self, x):
        sys.exit(7)


class LeavesAtOnce(Base):
    def mischief(self, x):
        print("last words")
        sys.stdout.flush()
        os._exit(8)


class WantsTooMuch(Base):
    def mischief(self, x):
        torch.empty(1 << 55, dtype=torch.uint8)


class Segfaults(Base):
    def mischief(self, x):
        ctypes.string_at(0)


class ClosesEverything(Base):
    def mischief(self, x):
        os.closerange(0, 64)


class NotANumber(Base):
    def forward(self, x):
        return x / 0 - x / 0


class HasNothing(Base):
    def forward(self, x):
        return None


class IsRandom(Base):
    def forward(self, x):
        return torch.randn_like(x)


class WritesIntoItsInput(Base):
    def forward(self, x):
        return x.add_(1)


class Sleeps(Base):
    """For ever, with a whole family: a child, one in a session of its own, an orphan of a forked child."""

    def mischief(self, x):
        with Path("asleep").open("a") as pids:
            print(os.getpid(), file=pids)
            print(subprocess.Popen(["sleep", "1000"]).pid, file=pids)
            print(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, file=pids)
            print(orphan(), file=pids)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)


class Waits(Base):
    """Says that it has begun, by its process id in the pipe `begun`, and waits to be ended unless `go` is there."""

    def mischief(self, x):
        if Path("go").exists():
            return
        child = subprocess.Popen(["sleep", "1000"])
        with Path("begun").open("w") as pipe:
            print(os.getpid(), os.getppid(), child.pid, orphan(), file=pipe)
        time.sleep(1000)


class Several(nn.Module):
    """Named inputs of several kinds, some by keyword; checks what it is given."""

    def forward(self, image, ids, *, mask, scale):
        # image [3, B, 4]  ids [B, 5]  mask [B, 5]  scale []
        B = ids.shape[0]
        assert image.shape == (3, B, 4) and image.dtype == torch.float32
        assert ids.shape == (B, 5) and ids.dtype == torch.int64
        assert ids.min() >= 10 and ids.max() < 20
        assert mask.shape == (B, 5) and mask.dtype == torch.bool
        assert scale.shape == () and scale == 3
        return {"pixels": image.sum(0) * scale, "picked": (ids * mask, ids.argmax(1))}


class SeesItsEnvironment(Base):
    """Right only where FOO is set, no GPU is visible and the process came from a fresh interpreter."""

    def mischief(self, x):
        assert os.environ["FOO"] == "1"
        assert os.environ["BAR"] == "true"
        comes_from_fresh()


class ComesFromFresh(Base):
    def mischief(self, x):
        comes_from_fresh()


class SeesNoGpu(Base):
    def mischief(self, x):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        assert "FOO" not in os.environ


def comes_from_fresh():
    command = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    assert "--no-preload" in command, command


class OwnMode:
    """A mode of a user; `kind` says what it does wrong."""

    compiles = False
    settling_calls = 1

    def __init__(self, kind="right"):
        self.kind = kind

    def missing(self, device):
        return "this mode is never there" if self.kind == "missing" else None

    def prepare(self, module, args, kwargs):
        if self.kind == "raises":
            raise RuntimeError("cannot be prepared")
        if self.kind == "degraded":
            return Prepared(module, degraded="it was not in the mood")
        return Prepared(module if self.kind == "right" else lambda x: module(x) * 1.01)

"""Modules and modes of a user that do what they should not; imported by cells, not by the tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

from effbench.modes.base import Mode, Prepared


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
    def mischief(self, x):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)


class Waits(Base):
    """Says that it has begun, by its process id in the pipe `begun`, and waits to be ended unless
    `go` is there."""

    def mischief(self, x):
        if Path("go").exists():
            return
        child = subprocess.Popen(["sleep", "1000"])
        with Path("begun").open("w") as pipe:
            print(os.getpid(), os.getppid(), child.pid, orphan(), file=pipe)
        time.sleep(1000)


def is_in_duet():
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "effbench.measure.duet":
            return True
        frame = frame.f_back
    return False


class InDuet(nn.Module):
    """Misbehaves once it is timed in turn with its partner."""

    def __init__(self, what="nothing", seconds=0.001):
        super().__init__()
        self.what = what
        self.seconds = seconds

    def forward(self, x):
        time.sleep(self.seconds)
        if self.what == "nothing" or not is_in_duet():
            return x * 2
        if self.what == "die":
            os._exit(9)
        if self.what == "hang" or Path("hang").exists():
            Path("hangs").touch()
            time.sleep(1000)
        return x * 2


class Product(nn.Module):
    """Of its input and itself: Inductor generates no C++ for it, which takes a second to compile
    for each shape."""

    def forward(self, x):
        return x.T @ x


def mean(output, inputs):
    return output.mean()


class Explodes(nn.Module):
    """Learns nothing but to grow: finite for the steps that are checked, infinite soon after."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight**2 * 1e3 + x[:, :4] * 0


class OwnMode(Mode):
    """A mode of a user; `kind` says what it does wrong."""

    compiles = False
    settling_calls = 1

    def __init__(self, kind="right"):
        self.kind = kind

    def missing(self, device):
        return "this mode is never there" if self.kind == "missing" else None

    def prepare(self, module, example):
        if self.kind == "raises":
            raise RuntimeError("cannot be prepared")
        if self.kind == "degraded":
            return Prepared(module, degraded="it was not in the mood")
        if self.kind == "forgets":
            return None
        if self.kind == "tells":
            return Prepared(module, facts={"weight": torch.ones(1)})
        return Prepared(module if self.kind == "right" else lambda x: module(x) * 1.01)

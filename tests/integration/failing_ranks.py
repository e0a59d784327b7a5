"""Modules of which one rank misbehaves; imported by cells, not by the tests."""

import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel


class Base(nn.Module):
    """A layer that is split by columns. From call `at` on, rank 1 misbehaves."""

    at = 1

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def tensor_parallel_plan(self):
        return {"layer": ColwiseParallel(output_layouts=Replicate())}

    def mischief(self):
        raise NotImplementedError

    def forward(self, x):
        self.calls += 1
        if self.calls == 1:
            with Path("pids").open("a") as file:
                print(os.getpid(), file=file)
        if os.environ.get("RANK") == "1" and self.calls >= self.at:
            self.mischief()
        return self.layer(x)


class IsKilled(Base):
    def mischief(self):
        os.kill(os.getpid(), signal.SIGKILL)


class IsStopped(Base):
    """While it is timed."""

    at = 50

    def mischief(self):
        os.kill(os.getpid(), signal.SIGSTOP)


class Hangs(Base):
    def mischief(self):
        time.sleep(1000)


class Raises(Base):
    def mischief(self):
        raise ValueError("bad weather")


class RaisesLater(Raises):
    """While it is timed."""

    at = 50


class LacksMemory(Base):
    def mischief(self):
        raise torch.OutOfMemoryError("no room")


class Leaves(Base):
    def mischief(self):
        os._exit(3)

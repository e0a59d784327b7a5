"""Modules of which one rank misbehaves; imported by cells, not by the tests."""

import os
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path

from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel


class Base(nn.Module, ABC):
    """A layer that is split by columns, of which rank 1 misbehaves. `later`: once it is split, so
    that the other rank waits in a collective."""

    later = False

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def tensor_parallel_plan(self):
        return {"layer": ColwiseParallel(output_layouts=Replicate())}

    @abstractmethod
    def mischief(self):
        """Fail."""

    def forward(self, x):
        Path("pids", str(os.getpid())).touch()
        is_split = isinstance(self.layer.weight, DTensor)
        if os.environ.get("RANK") == "1" and (is_split or not self.later):
            self.mischief()
        return self.layer(x)


class IsKilled(Base):
    def mischief(self):
        os.kill(os.getpid(), signal.SIGKILL)


class IsStopped(Base):
    later = True

    def mischief(self):
        os.kill(os.getpid(), signal.SIGSTOP)


class Hangs(Base):
    later = True

    def mischief(self):
        Path("hangs").touch()
        time.sleep(1000)


class Raises(Base):
    later = True

    def mischief(self):
        raise ValueError("bad weather")

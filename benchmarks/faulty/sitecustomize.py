"""Faults that need a changed interpreter; Python imports this module when it starts in a sweep of
faults.py.

If the file `clock` exists in the folder of the sweep, the clock is as many seconds off as it says.
If `gpu-lost` exists, trials cannot take their device.
"""

import datetime
import importlib.abc
import importlib.util
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["EFFBENCH_FAULTS"])
CLOCK = FOLDER / "clock"
REAL = time.time


def shift_s() -> float:
    return float(CLOCK.read_text()) if CLOCK.exists() else 0.0


class Turned(datetime.datetime):
    """A datetime whose `now` follows the turned clock."""

    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)


class Lost(importlib.abc.MetaPathFinder):
    """Changes effbench.worker.trial when it is imported: a lost GPU cannot be simulated by a
    model."""

    def find_spec(self, name, path=None, target=None):
        if name != "effbench.worker.trial":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def changed(module):
            execute(module)
            take_device = module.RunningTrial.take_device

            def take(self):
                if (FOLDER / "gpu-lost").exists():
                    raise RuntimeError("CUDA error: unknown error (the GPU has fallen off the bus)")
                take_device(self)

            module.RunningTrial.take_device = take

        spec.loader.exec_module = changed
        return spec


datetime.datetime = Turned
time.time = lambda: REAL() + shift_s()
sys.meta_path.insert(0, Lost())

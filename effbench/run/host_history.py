"""How fast and how quiet the host is while a sweep runs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from effbench.core.cell import Trial
from effbench.core.printable import count
from effbench.run.interpreters import Interpreter
from effbench.run.plan import PlannedTrial
from effbench.store.trials import HostSpeeds

#: Trials in a row without an undisturbed moment after which a sweep stops waiting for one.
UNQUIET_TRIALS = 3


@dataclass
class HostHistory:
    """What the trials of a sweep tell about the host. `speeds`: of trials under each interpreter.
    `waits`: whether trials still wait for undisturbed moments. `unquiet`: trials in a row without
    one."""

    speeds: dict[Interpreter, HostSpeeds]
    waits: bool = True
    unquiet: int = 0

    def speeds_of(self, interpreter: Interpreter) -> HostSpeeds:
        return self.speeds.setdefault(interpreter, HostSpeeds())

    def add(self, trial: PlannedTrial, record: Trial) -> str | None:
        """Add a trial. After some trials in a row without an undisturbed moment, stop waiting for
        one and return why."""
        self.speeds_of(trial.run.interpreter).add(record)
        if record.disturbed_fraction is None:
            return None
        if record.disturbed_fraction < 1.0:
            self.unquiet = 0
            return None
        self.unquiet += 1
        if not self.waits or self.unquiet < UNQUIET_TRIALS:
            return None
        self.waits = False
        return busy_text(trial.run.cell.device)


def busy_text(device: str) -> str:
    """Return why a sweep stops waiting for undisturbed moments, and what to do."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    remedies = "close other programs or use a quieter machine"
    if device == "cpu":
        remedies += "; threads=1 leaves cores to others"
    return (
        f"The host is busy: {UNQUIET_TRIALS} trials in a row had no undisturbed moment (load"
        f" {load:.1f} on {count(cores, 'core')}). The sweep no longer waits for one, and marks the"
        f" times with ~. To avoid this, {remedies}."
    )

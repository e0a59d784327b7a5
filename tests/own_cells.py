"""Cells of modules in files of tests, on the CPU: their workloads, and their trials in this
process."""

from collections.abc import Callable
from dataclasses import dataclass

from effbench.core.cell import Cell, Status, Trial
from effbench.core.message import MessagePipe, TrialRequest
from effbench.modes.eager import Eager
from effbench.worker import trial
from effbench.workloads.base import InputSets

EAGER = {"name": "eager", "_target_": "effbench.modes.eager.Eager"}


def target_of(thing):
    """The import path of a class or function."""
    return f"{thing.__module__}.{thing.__qualname__}"


def own_model(module, *shape):
    """A model of this class or function, with an input x."""
    inputs = [{"name": "x", "shape": [*shape]}]
    return {"name": "m", "module": {"_target_": target_of(module)}, "inputs": inputs}


def cpu_cell(bs=1, model=None, mode=EAGER, dtype="float32", phase="inference", **more):
    return Cell(model or {"name": "m"}, bs, mode, dtype, phase, "cpu", **more)


def own_workload(kind, cell, module, specs, inputs):
    """What is done with a module in eager mode, with these inputs."""
    made = kind(cell, Eager(), module, Trial(cell.key, 0, Status.OK), specs)
    made.inputs = InputSets(inputs, inputs)
    return made


@dataclass(frozen=True)
class PhasePipe(MessagePipe):
    """Hands the phases of a task to a function, and sends nothing."""

    end: int = -1
    hear: Callable[[str], None] = str

    def send(self, *, phase):
        self.hear(phase)


def run_trial(cell, protocol, hear_phase=str, **options):
    """Run a trial in this process, and return what it records."""
    request = TrialRequest(cell.params(), protocol, **options)
    return Trial.from_json(trial.run_task(request.to_json(), PhasePipe(hear=hear_phase)))

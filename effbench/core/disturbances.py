"""What disturbs a measurement: the kind of a disturbance, and the text that people read.

The parts that find a disturbance (`measure`, `worker`) give it its kind, and the parts that show it
choose by the kind. The database stores the text alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class DisturbanceKind(StrEnum):
    HOST = "host"  # other processes or virtual machines used the CPU, or its speed changed
    CLOCKS = "clocks"  # the hardware or the driver slowed the GPU down
    PROCESS = "process"  # another process used the GPU
    UNSTEADY = "unsteady"  # undisturbed calls had several speeds
    TOO_FEW = "too few"  # too few calls to tell


@dataclass(frozen=True)
class Disturbance:
    """Why times are marked. `text`: the reason in one line."""

    kind: DisturbanceKind
    text: str


def busy_host(details: str) -> Disturbance:
    """Return that the host was busy. `details`: continue the text."""
    return Disturbance(DisturbanceKind.HOST, f"host busy{details}")


def foreign_process(what_it_did: str) -> Disturbance:
    return Disturbance(DisturbanceKind.PROCESS, f"another process {what_it_did}")


# --- reasons in the database ---

_OF_BASELINE = "the baseline's times: "


def reason_of_baseline(reason: str) -> str:
    """Return the reason of a speedup that is marked only because its baseline's times are, for this
    `reason`."""
    return f"{_OF_BASELINE}{reason}"


def cause_of(reason: str) -> str:
    """Return what disturbed the machine, from the reason of times or of a speedup: a stored reason
    tells by its text alone whether it is the baseline's."""
    return reason.removeprefix(_OF_BASELINE)

"""The whole examination: every part of the machine, in the order in which it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from effbench.cell import Environment
from effbench.doctor import calibrated, driver, gpu, memory, processor, sharing, software, storage
from effbench.doctor.finding import Finding, problem
from effbench.doctor.nvml import Nvml, devices
from effbench.errors import WorkerError
from effbench.message import ProbeRequest
from effbench.sweep.client import ForkServer

PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Examination:
    """`answer`: what the probe said, None where no worker runs. `calibration`: this environment's, None if it has
    none."""

    findings: list[Finding]
    answer: dict[str, Any] | None
    calibration: dict[str, Any] | None

    @property
    def environment_id(self) -> str | None:
        return None if self.answer is None else Environment(**self.answer["environment"]).id

    @property
    def has_problem(self) -> bool:
        return any(finding.level == "problem" for finding in self.findings)


def examine(server: ForkServer, db: str) -> Examination:
    """Look at everything. `server`: a fork server that may still be starting; `db`: a path or any SQLAlchemy URL."""
    host = [*within("CPU", processor.findings()), *within("memory", memory.findings())]  # before the probe is a load
    answer, calibration = None, None
    request = ProbeRequest(modules=[target for target, _ in software.EXTRA.values()])
    try:
        answer = server.call("probe", request.to_json(), PROBE_TIMEOUT_S)
    except WorkerError as error:
        why = problem(str(error), "nothing can be measured", "python -c 'import torch' says why")
        first = within("software", [why])
    else:
        first = [*within("software", software.findings(answer)), *within("GPU", gpus(answer))]
    stored = list(within("storage", storage.findings(db)))
    if answer is not None:
        calibration = calibrated.load(db, Environment(**answer["environment"]).id)
        stored += within("calibration", calibrated.findings(calibration, bool(answer["gpus"])))
    return Examination([*first, *host, *stored], answer, calibration)


def gpus(answer: dict[str, Any]) -> Iterable[Finding]:
    nvml = Nvml()
    yield from driver.findings(nvml, answer)
    for device in devices(nvml, answer["gpus"]):
        yield from sharing.findings(device)
        yield from gpu.findings(device)


def within(area: str, findings: Iterable[Finding]) -> list[Finding]:
    return [replace(finding, area=area) for finding in findings]

"""What a check yields (`Finding`), and what it examines (`ExaminedMachine`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from effbench.measure.gpu import Gpu, Nvml
from effbench.run.probe import ProbedMachine


@dataclass(frozen=True)
class Finding:
    """A finding of a check. `level`: good, note, warning (results suffer) or problem (something
    cannot be measured); `what`: the fact; `effect`: its effect on results; `fix`: what to do;
    `area`: heading of the output."""

    level: str
    what: str
    effect: str = ""
    fix: str = ""
    area: str = ""


good = partial(Finding, "good")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
problem = partial(Finding, "problem")


@dataclass(frozen=True)
class ExaminedMachine:
    """The machine that checks examine. `found`: what a worker found, None if none starts
    (`worker_error`: why). `root`: of /proc and /sys. `compiler_error`: why Inductor cannot compile
    for the CPU, None if it can."""

    db: str
    found: ProbedMachine | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    root: Path = Path("/")
    compiler_error: str | None = None
    worker_error: str | None = None

    @property
    def probed(self) -> ProbedMachine:
        """What a worker found; checks that need it do not run without it."""
        assert self.found is not None
        return self.found

    @cached_property
    def nvml(self) -> Nvml:
        return Nvml()

    @cached_property
    def gpus(self) -> list[Gpu]:
        """The GPUs that torch uses and NVML knows, named by torch's index."""
        gpus = []
        for gpu in self.probed.gpus:
            handle = self.nvml.handle(gpu.uuid)
            if handle is not None:
                gpus.append(Gpu(self.nvml, handle, f"GPU {gpu.index}"))
        return gpus

    def text(self, path: str | Path) -> str:
        """Return the text of a file below `root` without its last newline; empty if it cannot be
        read."""
        try:
            return (self.root / path).read_text(errors="replace").strip()
        except OSError:
            return ""

"""Save artifacts of a trial: a trace, a memory snapshot, generated code, graphs. They are made
after all measurements, from additional calls and preparations. A failure to make one is only a
note."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from effbench.core.cell import Trial
from effbench.core.errors import UnsupportedError
from effbench.core.message import TrialRequest
from effbench.core.printable import describe
from effbench.measure import timing
from effbench.models.inputs import Step
from effbench.workloads.base import Workload, copies

CALLS = 3
MOST_EVENTS = 100_000  # of the memory history


def collect(request: TrialRequest, trial: Trial, workload: Workload) -> None:
    """Make the artifacts that `request.artifacts` lists, and record their names and notes in the
    trial's `extra`."""
    wanted = request.artifacts or {}
    folder = Path(wanted["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    make = ArtifactMaker(folder, request.cache_dir, workload)
    files: list[Path] = []
    notes = {}
    makers = {
        "trace": make.trace,
        "code": make.code,
        "snapshot": make.snapshot,
        "graph": make.graphs,  # last, because it discards compiled code
    }
    with workload.context():
        for kind, maker in makers.items():
            if kind not in wanted["kinds"]:
                continue
            try:
                files.extend(maker())
            except UnsupportedError as error:
                notes[kind] = str(error)
            # from the module or torch's tools: only this artifact is missing
            except Exception as error:
                notes[kind] = describe(error)
    with contextlib.suppress(OSError):
        folder.rmdir()  # if it is empty
    trial.extra["artifacts"] = [f"{wanted['name']}/{path.name}" for path in files]
    if notes:
        trial.extra["artifact_notes"] = notes


@dataclass
class ArtifactMaker:
    """Makes the files of a trial in `folder`, from its step and from additional preparations."""

    folder: Path
    cache_dir: str | None
    workload: Workload

    def play(self, step: Step, calls: int = CALLS) -> None:
        """Make calls with copies of the timed inputs."""
        timing.play(step, map(copies, itertools.cycle(self.workload.inputs.timed)), calls)
        timing.synchronizer(self.workload.device)()

    def trace(self) -> Iterator[Path]:
        """Write a Chrome trace of a few calls (for chrome://tracing or Perfetto) and yield its
        path."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.workload.on_cuda:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            self.play(self.workload.step)
        path = self.folder / "trace.json.gz"
        profiler.export_chrome_trace(str(path))
        yield path

    def snapshot(self) -> Iterator[Path]:
        """Write torch's memory history of a second preparation and a few calls (for
        pytorch.org/memory_viz)."""
        if not self.workload.on_cuda:
            raise UnsupportedError("a memory snapshot needs CUDA")
        path = self.folder / "memory.pickle"
        torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS)
        try:
            torch._dynamo.reset()  # otherwise Dynamo reuses its compiled graphs
            args, kwargs = copies(self.workload.inputs.timed[0])
            self.play(self.workload.prepare(args, kwargs).step)
            torch.cuda.memory._dump_snapshot(str(path))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        yield path

    def code(self) -> Iterator[Path]:
        """Copy the code that Inductor wrote to this cell's compile cache: one file with kernels per
        graph."""
        sources = Path(self.cache_dir).rglob("*.py") if self.cache_dir else ()
        written = [path for path in sources if is_output_code(path)]
        if not written:
            raise UnsupportedError("this cell's compile cache has no Python code from Inductor")
        written.sort(key=lambda path: (path.stat().st_mtime, path))
        for number, source in enumerate(written, 1):
            path = self.folder / f"code-{number}.py"
            path.write_bytes(source.read_bytes())
            yield path

    def graphs(self) -> Iterator[Path]:
        """Write each graph that Dynamo traces in the module as text."""
        texts: list[str] = []

        def keep(traced: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Step:
            texts.append(traced.print_readable(print_output=False) + f"\n{traced.graph}\n")
            forward: Step = traced.forward
            return forward

        torch._dynamo.reset()
        self.play(self.workload.calling(torch.compile(self.workload.module, backend=keep)), 1)
        if not texts:
            raise UnsupportedError("Dynamo traced no graph in this module")
        for number, text in enumerate(texts, 1):
            path = self.folder / f"graph-{number}.txt"
            path.write_text(text)
            yield path


def is_output_code(path: Path) -> bool:
    """Return whether the file has the code of a graph (with its kernels as text), not of a single
    kernel."""
    text = path.read_text(errors="replace")
    return "AsyncCompile" in text and "def call(" in text

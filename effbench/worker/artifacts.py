"""Artifacts of a trial for a person to study, made after everything is measured from further calls and preparations:
a trace, a memory snapshot, generated code, the graph. A failure is a note."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from effbench.cell import Trial
from effbench.errors import UnsupportedError
from effbench.measure import timing
from effbench.message import TrialRequest
from effbench.worker import failures
from effbench.worker.workload import Inference, copies

CALLS = 3
MOST_EVENTS = 100_000  # of the memory history


def collect(
    request: TrialRequest, trial: Trial, workload: Inference, step: Callable, inputs: list[timing.Inputs]
) -> None:
    """Make what `request.artifacts` asks for; names and notes go into the trial's `extra`."""
    wanted = request.artifacts
    folder = Path(wanted["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    make = Maker(folder, request.cache_dir, workload, step, inputs)
    files, notes = [], {}
    makers = (
        ("trace", make.trace),
        ("code", make.code),
        ("snapshot", make.snapshot),
        ("graph", make.cuda_graphs),
        ("graph", make.graphs),  # last, since it drops what is compiled
    )
    with workload.context():
        for kind, maker in makers:
            if kind in wanted["kinds"]:
                try:
                    files.extend(maker())
                except UnsupportedError as error:
                    notes[kind] = str(error)
                except Exception as error:  # from the module or torch's tools: it costs this artifact alone
                    notes[kind] = failures.describe(error)
    with contextlib.suppress(OSError):
        folder.rmdir()  # if it is empty
    trial.extra["artifacts"] = [f"{wanted['name']}/{path.relative_to(folder)}" for path in files]
    if notes:
        trial.extra["artifact_notes"] = notes


@dataclass
class Maker:
    """Makes the files of one trial in `folder`, from its measured `step` and from further preparations."""

    folder: Path
    cache_dir: str | None
    workload: Inference
    step: Callable[..., Any]
    inputs: list[timing.Inputs]

    def play(self, step: Callable[..., Any], calls: int = CALLS) -> None:
        timing.play(step, map(copies, itertools.cycle(self.inputs)), calls)
        timing.synchronizer(self.workload.device)()

    def play_prepared_again(self) -> None:
        torch._dynamo.reset()  # or it would find the graphs that it has
        self.play(self.workload.prepare(*copies(self.inputs[0])).step)

    def trace(self) -> Iterator[Path]:
        """A Chrome trace of a few calls (chrome://tracing, Perfetto)."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.workload.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
            self.play(self.step)
        path = self.folder / "trace.json.gz"
        profiler.export_chrome_trace(str(path))
        yield path

    def snapshot(self) -> Iterator[Path]:
        """torch's memory history over a second preparation and a few calls (pytorch.org/memory_viz)."""
        if self.workload.device.type != "cuda":
            raise UnsupportedError("a memory snapshot needs CUDA")
        path = self.folder / "memory.pickle"
        torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS)
        try:
            self.play_prepared_again()
            torch.cuda.memory._dump_snapshot(str(path))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
        yield path

    def code(self) -> Iterator[Path]:
        """Copy what Inductor wrote for this cell from its compile cache: a file with its kernels for each graph."""
        sources = Path(self.cache_dir).rglob("*.py") if self.cache_dir else ()
        written = [path for path in sources if is_output_code(path)]
        if not written:
            raise UnsupportedError("Inductor left no Python code in this cell's compile cache")
        for number, source in enumerate(sorted(written, key=lambda path: (path.stat().st_mtime, path)), 1):
            path = self.folder / f"code-{number}.py"
            path.write_bytes(source.read_bytes())
            yield path

    def graphs(self) -> Iterator[Path]:
        """Each graph that Dynamo finds in the module as text."""
        texts: list[str] = []

        def keep(found: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
            texts.append(found.print_readable(print_output=False) + f"\n{found.graph}\n")
            return found.forward

        torch._dynamo.reset()
        self.play(torch.compile(self.workload.module, backend=keep), 1)
        if not texts:
            raise UnsupportedError("Dynamo finds no graph in this module")
        for number, text in enumerate(texts, 1):
            path = self.folder / f"graph-{number}.txt"
            path.write_text(text)
            yield path

    def cuda_graphs(self) -> Iterator[Path]:
        """On CUDA, capture anew with every CUDA graph in debug mode, and draw those that came about as DOT."""
        if self.workload.device.type != "cuda":
            return
        made: list[torch.cuda.CUDAGraph] = []
        plain = torch.cuda.CUDAGraph

        def in_debug_mode(*_args: Any, **_kwargs: Any) -> torch.cuda.CUDAGraph:
            graph = plain(keep_graph=True)  # else there is nothing left to draw once it was instantiated
            graph.enable_debug_mode()
            made.append(graph)
            return graph

        with mock.patch.object(torch.cuda, "CUDAGraph", in_debug_mode):
            self.play_prepared_again()
        numbers, path = itertools.count(1), self.folder / "cuda-graph.dot"
        for graph in made:
            graph.debug_dump(str(path))
            # cudagraph trees capture nothing at all in one, for its memory pool
            if path.is_file() and "node_" in path.read_text(errors="replace"):
                yield path.rename(self.folder / f"cuda-graph-{next(numbers)}.dot")
        path.unlink(missing_ok=True)


def is_output_code(path: Path) -> bool:
    """Return whether it is the code of a graph, not that of a single kernel (a graph holds its kernels as text)."""
    text = path.read_text(errors="replace")
    return "AsyncCompile" in text and "def call(" in text

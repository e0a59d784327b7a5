"""Artifacts of a GPU: kernels in the trace, the memory history, CUDA graphs as DOT; no figure changes by them."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from pathlib import Path

import pytest

import effbench
from effbench.store import Store

QUICK = ["protocol=quick", "protocol.budget_s=0.2", "protocol.min_time_s=0.05", "protocol.load_s=0"]
MODES = {"inference": "eager,reduce-overhead,cuda-graph", "training": "cuda-graph"}


@pytest.fixture(scope="module", params=["inference", "training"])
def swept(request, tmp_path_factory):
    """Trials by mode, and the folder of the database."""
    folder = tmp_path_factory.mktemp(f"gpu-artifacts-{request.param}")
    before = Path.cwd()
    os.chdir(folder)
    try:
        sweep = effbench.sweep(["model=mlp", "model.module.width=128", "model.module.depth=3", "bs=4",
                                f"mode={MODES[request.param]}", f"phase={request.param}",
                                "artifacts=[trace,code,snapshot,graph]", *QUICK])  # fmt: skip
        with Store.open(sweep.db) as store:
            names = {cell.key: cell.mode_name for cell in store.planned(sweep.id)}
            found = {names[trial["cell_key"]]: trial for trial in store.trials(sweep.id)}
    finally:
        os.chdir(before)
    return folder / "results", found


def files(swept, mode) -> dict[str, Path]:
    folder, trials = swept
    return {name.rpartition("/")[2]: folder / name for name in trials[mode]["extra"]["artifacts"]}


def test_the_trials_are_as_good_as_without(swept):
    for mode, trial in swept[1].items():
        assert (trial["status"], trial["reason"]) == ("ok", None), mode
        assert set(trial["extra"].get("artifact_notes", {})) <= {"code"}, trial["extra"]["artifact_notes"]


def test_the_trace_has_kernels(swept):
    for mode in swept[1]:
        events = json.loads(gzip.decompress(files(swept, mode)["trace.json.gz"].read_bytes()))["traceEvents"]
        assert sum(event.get("cat") == "kernel" for event in events) >= 9, mode


def test_the_memory_history(swept):
    for mode in swept[1]:
        snapshot = pickle.loads(files(swept, mode)["memory.pickle"].read_bytes())
        assert snapshot["segments"], mode
        assert any(trace for trace in snapshot["device_traces"]), mode


def test_code_is_of_what_was_compiled(swept):
    for mode in swept[1]:
        found = files(swept, mode)
        assert ("code-1.py" in found) == (mode == "reduce-overhead")
        assert "code-1.py" not in found or "triton" in found["code-1.py"].read_text()


def test_cuda_graphs_are_drawn(swept):
    for mode in swept[1]:
        found = files(swept, mode)
        assert "linear" in found["graph-1.txt"].read_text(), mode
        assert any(name.endswith(".dot") for name in found) == (mode != "eager")
        assert mode == "eager" or "digraph" in found["cuda-graph-1.dot"].read_text()

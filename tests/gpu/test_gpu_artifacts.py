"""Artifacts of a GPU: kernels in the trace, the memory history, CUDA graphs as DOT; no figure
changes by them."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest

MODES = {"inference": "eager,reduce-overhead,cuda-graph", "training": "cuda-graph"}


@pytest.fixture(scope="module", params=MODES)
def made(request, folder, swept):
    """The folder of the database, and the trials by mode."""
    phase = request.param
    trials = swept(
        "model=mlp",
        "model.module.width=128",
        "model.module.depth=3",
        "bs=4",
        f"mode={MODES[phase]}",
        f"phase={phase}",
        "artifacts=[trace,code,snapshot,graph]",
        "protocol.profile=false",
    )
    return folder / "results", {trial["mode"]: trial for trial in trials}


def files(made, mode) -> dict[str, Path]:
    folder, trials = made
    return {name.rpartition("/")[2]: folder / name for name in trials[mode]["extra"]["artifacts"]}


def test_every_artifact_and_no_figure_changes(made):
    for mode, trial in made[1].items():
        assert (trial["status"], trial["reason"]) == ("ok", None), mode
        assert set(trial["extra"].get("artifact_notes", {})) <= {"code"}, trial["extra"][
            "artifact_notes"
        ]
        saved = files(made, mode)
        events = json.loads(gzip.decompress(saved["trace.json.gz"].read_bytes()))["traceEvents"]
        assert sum(event.get("cat") == "kernel" for event in events) >= 9, mode
        snapshot = pickle.loads(saved["memory.pickle"].read_bytes())
        assert snapshot["segments"] and any(snapshot["device_traces"]), mode
        assert ("code-1.py" in saved) == (mode == "reduce-overhead")
        assert "code-1.py" not in saved or "triton" in saved["code-1.py"].read_text()
        assert "linear" in saved["graph-1.txt"].read_text(), mode

"""Every model beside the first ones, small, in eager and as a CUDA graph, through a real sweep on a GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import effbench

QUICK = ["protocol=quick", "protocol.budget_s=0.2", "protocol.min_time_s=0.05", "sweep.seed=1"]
MODES = "eager,cuda-graph"
LLAMA = ["layers=2", "width=32", "heads=4", "ffn=64", "vocab=97"]
CACHE = ["max_seq=32", "context=8"]
MODELS = {
    "mlp-swiglu": ["width=64", "depth=2", "ffn=160"],
    "llama-1b-decode": [*LLAMA, *CACHE, "kv_heads=2"],
    "llama-1b-prefill": [*LLAMA, "seq=16", "kv_heads=2"],
    "llama-7b-decode": [*LLAMA, *CACHE, "kv_heads=4"],
    "llama-7b-prefill": [*LLAMA, "seq=16", "kv_heads=4"],
    "moe-decode": [*LLAMA, *CACHE, "kv_heads=2", "experts=6", "top_k=2"],
    "resnet18": [],
    "mobilenetv3": [],
    "vit-b": ["image_size=64"],
}
VISION = {"resnet18", "mobilenetv3", "vit-b"}
needs_torchvision = pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("models"))
    yield
    os.chdir(before)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[needs_torchvision] if name in VISION else []) for name in MODELS]
)
def test_model_is_ok(name):
    """At two batch sizes, of which `moe-decode` gathers experts at the first and goes through all at the second."""
    settings = [f"model.module.{setting}" for setting in MODELS[name]]
    if name in VISION:
        settings.append("model.inputs.x.shape=[3,64,64]")
    found = effbench.sweep([f"model={name}", *settings, "bs=1,4", f"mode={MODES}", *QUICK]).results()
    assert len(found) == 4
    assert set(found["status"]) == {"ok"}, found[["bs", "mode", "status", "reason"]].to_dict("records")
    assert (found["rel_error"] < 0.05).all()
    assert (found["latency_ms"] > 0).all()

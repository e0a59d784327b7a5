"""The models beside the first ones, small, in eager and as a CUDA graph, through one real sweep on a GPU."""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import effbench

CONF = Path(__file__).parents[2] / "conf" / "model"
QUICK = [
    "protocol=quick",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.05",
    "protocol.warmup_s=0.05",
    "sweep.seed=1",
]
LLAMA = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 97}
CACHE = {**LLAMA, "max_seq": 64, "context": 24}
MOE = {**CACHE, "experts": 6, "top_k": 2}
#: By the name of the small model: the YAML that it is made of, and its settings.
SMALL = {
    "swiglu": ("mlp-swiglu", {"width": 64, "depth": 2, "ffn": 160}),
    "decode": ("llama-1b-decode", CACHE),
    "prefill": ("llama-1b-prefill", {**LLAMA, "seq": 16}),
    "decode-untied": ("llama-7b-decode", {**CACHE, "kv_heads": 4}),
    "prefill-untied": ("llama-7b-prefill", {**LLAMA, "kv_heads": 4, "seq": 16}),
    "moe-gathered": ("moe-decode", {**MOE, "dispatch": "gather"}),
    "moe-dense": ("moe-decode", {**MOE, "dispatch": "dense"}),
    "resnet18": ("resnet18", {}),
    "mobilenetv3": ("mobilenetv3", {}),
    "vit-b": ("vit-b", {"image_size": 64}),
}
VISION = {"resnet18", "mobilenetv3", "vit-b"}


def usable() -> list[str]:
    return [name for name in SMALL if name not in VISION or find_spec("torchvision")]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All that can be built here at bs 2, in a folder of its own."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "conf" / "model").mkdir(parents=True)
    for name in usable():
        source, settings = SMALL[name]
        node = yaml.safe_load((CONF / f"{source}.yaml").read_text())
        node["name"] = f"small-{name}"
        node["module"].update(settings)
        if name in VISION:
            node["inputs"]["x"]["shape"] = [3, 64, 64]
        (folder / "conf" / "model" / f"small-{name}.yaml").write_text(yaml.safe_dump(node, sort_keys=False))
    models = ",".join(f"small-{name}" for name in usable())
    with contextlib.chdir(folder):
        return effbench.sweep(
            ["--config-dir=conf", f"model={models}", "bs=2", "mode=eager,cuda-graph", *QUICK]
        ).results()


@pytest.mark.parametrize("name", SMALL)
def test_model_is_ok(results, name):
    if name not in usable():
        pytest.skip("torchvision is not installed")
    found = results[results["model"] == f"small-{name}"]
    assert sorted(found["mode"]) == ["cuda-graph", "eager"]
    assert set(found["status"]) == {"ok"}, found[["mode", "status", "reason"]].to_dict("records")
    assert (found["rel_error"] < 0.05).all()
    # the profiled pass understood the module's operators
    assert (found["kernels"] > 0).all() and (found["flops"] > 0).all() and (found["min_bytes"] > 0).all()

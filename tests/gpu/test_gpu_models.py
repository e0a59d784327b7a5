"""The models beside the first ones, small, in eager and as a CUDA graph, through one real sweep on a GPU."""

from __future__ import annotations

from importlib.util import find_spec

QUICK = ["protocol.budget_s=0.2", "protocol.min_time_s=0.05", "protocol.warmup_s=0.05", "sweep.seed=1"]
LLAMA = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 97}
CACHE = {**LLAMA, "max_seq": 64, "context": 24}
MOE = {**CACHE, "experts": 6, "top_k": 2}
IMAGES = [3, 64, 64]
#: By the name of the small model: the YAML that it is made of, its settings, and the shape of its images.
SMALL = {
    "small-swiglu": ("mlp-swiglu", {"width": 64, "depth": 2, "ffn": 160}),
    "small-decode": ("llama-1b-decode", CACHE),
    "small-prefill": ("llama-1b-prefill", {**LLAMA, "seq": 16}),
    "small-decode-untied": ("llama-7b-decode", {**CACHE, "kv_heads": 4}),
    "small-prefill-untied": ("llama-7b-prefill", {**LLAMA, "kv_heads": 4, "seq": 16}),
    "small-moe-gathered": ("moe-decode", {**MOE, "dispatch": "gather"}),
    "small-moe-dense": ("moe-decode", {**MOE, "dispatch": "dense"}),
    "small-resnet18": ("resnet18", {}, IMAGES),
    "small-mobilenetv3": ("mobilenetv3", {}, IMAGES),
    "small-vit-b": ("vit-b", {"image_size": 64}, IMAGES),
}


def test_models_are_ok(sweep_of_variants):
    usable = {name: model for name, model in SMALL.items() if IMAGES not in model or find_spec("torchvision")}
    rows = sweep_of_variants(usable, "bs=2", "mode=eager,cuda-graph", *QUICK)
    assert len(rows) == 2 * len(usable)
    for row in rows:
        assert row["status"] == "ok", (row["model"], row["mode"], row["reason"])
        assert row["rel_error"] < 0.05
        # the profiled pass understood the module's operators
        assert row["kernels"] > 0 and row["flops"] > 0 and row["min_bytes"] > 0

"""Micro-workloads in a CUDA graph, and the larger models, on a GPU through a sweep."""

from __future__ import annotations

from importlib.util import find_spec

FLOAT = ["bs=2", "dtype=float32"]
NONZERO = {"sizes": [64, 512, 512]}
#: By name: the micro-workload, its settings, and what becomes of it in a CUDA graph.
IN_A_GRAPH = {
    "creation-zeros": ("creation", {"fill": "zeros", "elements": 1000}, "ok"),
    "select-nonzero": ("nonzero", {"variant": "nonzero", **NONZERO}, "error"),
    "select-nonzero-static": ("nonzero", {"variant": "nonzero-static", **NONZERO}, "ok"),
    "grad": ("gradmode", {"variant": "grad"}, "unsupported"),
    "transfer-uint8": ("transfer", {"variant": "uint8", "pinned": False}, "error"),
    "transfer-uint8-pinned": ("transfer", {"variant": "uint8", "pinned": True}, "ok"),
    "adam-foreach": ("optimizer", {"variant": "foreach"}, "error"),
    "adam-capturable": ("optimizer", {"variant": "capturable"}, "ok"),
    "fusion-train": ("fusion-layer", {"variant": "train"}, "ok"),
    "chase-l1": ("pointer-chase", {"bytes": 8192, "hops": 16384}, "ok"),
    "add-triton": ("vector-add", {"variant": "triton", "elements": 2**20}, "ok"),
    "add-cuda": ("vector-add", {"variant": "cuda", "elements": 2**20}, "ok"),
}
LLAMA = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 97}
CACHE = {**LLAMA, "max_seq": 64, "context": 24}
IMAGES = [3, 64, 64]
#: Small models: the YAML that each is made of, its settings, and the shape of its images.
SMALL = {
    "small-swiglu": ("mlp-swiglu", {"width": 64, "depth": 2, "ffn": 160}),
    "small-decode": ("llama-1b-decode", CACHE),
    "small-prefill": ("llama-1b-prefill", {**LLAMA, "seq": 16}),
    "small-moe": ("moe-decode", {**CACHE, "experts": 6, "top_k": 2, "dispatch": "gather"}),
    "small-mobilenetv3": ("mobilenetv3", {}, IMAGES),
    "small-vit-b": ("vit-b", {"image_size": 64}, IMAGES),
}


def test_what_a_graph_can_hold(sweep_of_variants):
    variants = {name: cell[:2] for name, cell in IN_A_GRAPH.items()}
    rows = sweep_of_variants(variants, "mode=cuda-graph", "protocol.profile=false", *FLOAT)
    expected = {name: status for name, (_, _, status) in IN_A_GRAPH.items()}
    assert {row["model"]: row["status"] for row in rows} == expected, {
        row["model"]: row["reason"] for row in rows
    }


def test_models_are_ok(sweep_of_variants):
    usable = {
        name: model
        for name, model in SMALL.items()
        if IMAGES not in model or find_spec("torchvision")
    }
    rows = sweep_of_variants(usable, "mode=eager,cuda-graph", "bs=2")
    assert len(rows) == 2 * len(usable)
    for row in rows:
        assert row["status"] == "ok", (row["model"], row["mode"], row["reason"])
        assert row["rel_error"] < 0.05
        # the profiled pass understood the module's operators
        assert row["kernels"] > 0 and row["flops"] > 0

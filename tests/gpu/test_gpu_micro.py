"""The micro-workloads and the larger models on a GPU: every variant once through a sweep, and
kernels against known results."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise

import pytest
import torch
from effbench.experiments.launch_shapes import TYPES, VectorAdd

from effbench.experiments import memory_levels

#: The sweep of CELLS has 36 trials, each of which waits for those of other processes of pytest.
pytestmark = pytest.mark.timeout(600)
FLOAT = ["bs=2", "dtype=float32"]
MIB = 2**20
HOPS = 16384
#: By model: its settings by name in this sweep (none is a shipped one).
WORKLOADS = {
    "matmul32": {"matmul": {}},
    "elements": {
        f"elements-{variant}": {"variant": variant, "count": 16} for variant in ("whole", "loop")
    },
    "creation": {
        "creation-device": {"variant": "device", "elements": 1000},
        "creation-host": {"variant": "host", "elements": 1000},
        "creation-host-pinned": {"variant": "host-pinned", "elements": 1000},
        "creation-zeros": {"variant": "device", "fill": "zeros", "elements": 1000},
    },
    "inplace": {
        "in-place": {"variant": "in-place", "elements": 8 * MIB},
        "out-of-place": {"variant": "out-of-place", "elements": 8 * MIB},
    },
    "nonzero": {
        f"select-{variant}": {"variant": variant, "sizes": [64, 512, 512]}
        for variant in (
            "nonzero",
            "nonzero-static",
            "mask",
            "nonzero-then-work",
            "work-then-nonzero",
        )
    },
    "gradmode": {
        variant: {"variant": variant} for variant in ("grad", "no_grad", "inference_mode")
    },
    "transfer": {
        f"transfer-{variant}{'-pinned' * pinned}": {"variant": variant, "pinned": pinned}
        for variant in ("uint8", "float32")
        for pinned in (False, True)
    },
    "optimizer": {
        f"adam-{variant}": {"variant": variant}
        for variant in ("loop", "foreach", "fused", "capturable")
    },
    "fusion-layer": {f"fusion-{variant}": {"variant": variant} for variant in ("eval", "train")},
    "pointwise51": {"pointwise": {"features": 2000}},
    "pointer-chase": {
        "chase-register": {"variant": "register", "hops": HOPS},
        "chase-shared": {"variant": "shared", "bytes": 8192, "hops": HOPS},
        "chase-l1": {"bytes": 8192, "hops": HOPS},
        "chase-l2": {"bytes": 8 * MIB, "hops": HOPS},
        "chase-hbm": {"bytes": 256 * MIB, "hops": HOPS},
    },
    "vector-add": {
        "add-torch": {"variant": "torch", "elements": MIB},
        "add-triton": {"variant": "triton", "elements": MIB, "block": 32, "num_warps": 1},
        "add-cuda": {"variant": "cuda", "elements": MIB},
    },
}
CELLS = {
    name: (model, settings) for model, some in WORKLOADS.items() for name, settings in some.items()
}
LLAMA = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 96, "vocab": 97}
CACHE = {**LLAMA, "max_seq": 64, "context": 24}
MOE = {**CACHE, "experts": 6, "top_k": 2}
IMAGES = [3, 64, 64]
#: Small models: the YAML that each is made of, its settings, and the shape of its images.
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
#: What becomes of the workloads in a CUDA graph.
IN_A_GRAPH = {
    "creation-zeros": "ok",
    "select-nonzero": "error",
    "select-nonzero-static": "ok",
    "select-mask": "ok",
    "grad": "unsupported",
    "transfer-uint8": "error",
    "transfer-uint8-pinned": "ok",
    "adam-foreach": "error",
    "adam-capturable": "ok",
    "fusion-train": "ok",
    "chase-l1": "ok",
    "add-triton": "ok",
    "add-cuda": "ok",
}


@pytest.fixture(scope="module")
def eager(sweep_of_variants):
    """Rows by name."""
    rows = {row["model"]: row for row in sweep_of_variants(CELLS, "mode=eager", *FLOAT)}
    assert {
        name: (row["status"], row["reason"]) for name, row in rows.items() if row["status"] != "ok"
    } == {}
    assert set(rows) == set(CELLS)
    return rows


def test_what_a_graph_can_hold(sweep_of_variants):
    variants = {name: CELLS[name] for name in IN_A_GRAPH}
    rows = sweep_of_variants(variants, "mode=cuda-graph", "protocol.profile=false", *FLOAT)
    assert {row["model"]: row["status"] for row in rows} == IN_A_GRAPH, {
        row["model"]: row["reason"] for row in rows
    }


def test_in_place_allocates_nothing(eager):
    tensor = 2 * 8 * MIB * 4
    peaks = {name: eager[name]["peak_allocated_bytes"] for name in ("in-place", "out-of-place")}
    assert peaks["out-of-place"] - peaks["in-place"] == 2 * tensor


def test_kernels(eager):
    kernels = {name: row["kernels"] for name, row in eager.items()}
    assert kernels["elements-whole"] == 1
    assert kernels["elements-loop"] == 2 * 16, "a product and a copy for each"
    assert kernels["fusion-train"] == kernels["fusion-eval"] + 1, "dropout"
    assert 52 <= kernels["pointwise"] <= 54, (
        "50 products, ReLU, and a linear layer, which may be split"
    )
    assert kernels["adam-loop"] > kernels["adam-foreach"] > kernels["adam-fused"]
    assert kernels["chase-l1"] == kernels["add-cuda"] == kernels["add-triton"] == 1


@pytest.mark.alone
def test_farther_memory_takes_longer(sweep_of_variants):
    variants = {name: cell for name, cell in CELLS.items() if name.startswith("chase-")}
    rows = sweep_of_variants(variants, "mode=eager", *FLOAT)
    ns = {row["model"]: row["gpu_busy_ms"] * 1e6 / HOPS for row in rows}
    order = ["chase-register", "chase-l1", "chase-l2", "chase-hbm"]
    for near, far in pairwise(order):
        assert 1.3 * ns[near] < ns[far], ns
    assert ns["chase-register"] * 1.3 < ns["chase-shared"] < ns["chase-l2"], ns


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
        assert row["kernels"] > 0 and row["flops"] > 0 and row["min_bytes"] > 0


# --- the kernels by themselves


@torch.inference_mode()
def test_a_chase_goes_as_far_as_it_should():
    like = torch.empty(1, device="cuda")
    for variant, size, word in (
        ("memory", 4096, memory_levels.LINE_BYTES),
        ("memory", 40 * MIB, memory_levels.LINE_BYTES),
        ("shared", 4096, memory_levels.WORD_BYTES),
        ("shared", memory_levels.SHARED_BYTES, memory_levels.WORD_BYTES),
    ):
        for hops in (1, 1000, 16384):
            module = memory_levels.PointerChase(variant, bytes=size, hops=hops)
            assert [int(module(like)) for _ in range(3)] == [
                hops % memory_levels.odd(size // word)
            ] * 3
    for hops in (1, 31, 32, 1000, 16384):
        value = memory_levels.SEED
        for _ in range(hops):
            value = (value * memory_levels.FACTOR + memory_levels.SUMMAND) % 2**32
        assert int(memory_levels.PointerChase("register", hops=hops)(like)) == value


@pytest.mark.filterwarnings("default")
@torch.inference_mode()
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("elements", [1, 1000, 2**18 + 7])
def test_sums_are_those_of_torch(dtype, elements):
    x, y = (torch.randn(2, elements, device="cuda", dtype=dtype) for _ in range(2))
    assert torch.equal(VectorAdd("cuda")(x, y), x + y)
    wide = [tensor.repeat(8, 1) for tensor in (x, y)]
    assert torch.equal(VectorAdd("cuda-vectorised")(*wide), sum(wide))
    assert torch.equal(VectorAdd("cuda", threads=32, blocks=3)(x, y), x + y), (
        "blocks that go over the rest"
    )
    for block, warps in ((32, 1), (1024, 4), (16384, 32)):
        # half types may be added without the detour over float32: a last bit
        torch.testing.assert_close(VectorAdd("triton", block=block, num_warps=warps)(x, y), x + y)

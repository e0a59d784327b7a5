"""The micro-workloads on a GPU: every variant once through a sweep, and the kernels against known results."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import median

import pytest
import torch
from effbench.experiments.launch_shapes import TYPES, VectorAdd
from effbench.experiments.overheads import Selection
from omegaconf import OmegaConf

import effbench
from effbench.cli import config_folder
from effbench.experiments import memory_levels
from effbench.models.build import build_module
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs

QUICK = [
    "protocol=quick",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.03",
    "protocol.warmup_s=0.02",
    "protocol.load_s=0.05",
    "sweep.seed=1",
    "dtype=float32",
    "bs=2",
]
MIB = 2**20
HOPS = 16384
#: Name in this sweep (none is a shipped one) -> the model, and its settings.
CELLS = {
    "matmul": ("matmul32", {}),
    "elements-whole": ("elements", {"variant": "whole", "count": 16}),
    "elements-loop": ("elements", {"variant": "loop", "count": 16}),
    "creation-device": ("creation", {"variant": "device", "elements": 1000}),
    "creation-host": ("creation", {"variant": "host", "elements": 1000}),
    "creation-host-pinned": ("creation", {"variant": "host-pinned", "elements": 1000}),
    "creation-zeros": ("creation", {"variant": "device", "fill": "zeros", "elements": 1000}),
    "in-place": ("inplace", {"variant": "in-place", "elements": 8 * MIB}),
    "out-of-place": ("inplace", {"variant": "out-of-place", "elements": 8 * MIB}),
    "cold": ("inplace", {"variant": "out-of-place", "elements": 8 * MIB, "cold": True}),
    "nonzero-plain": ("nonzero", {"variant": "nonzero", "sizes": [64, 512, 512]}),
    "nonzero-static": ("nonzero", {"variant": "nonzero-static", "sizes": [64, 512, 512]}),
    "nonzero-mask": ("nonzero", {"variant": "mask", "sizes": [64, 512, 512]}),
    "nonzero-then-work": ("nonzero", {"variant": "nonzero-then-work", "sizes": [64, 512, 512]}),
    "work-then-nonzero": ("nonzero", {"variant": "work-then-nonzero", "sizes": [64, 512, 512]}),
    "grad": ("gradmode", {"variant": "grad"}),
    "no_grad": ("gradmode", {"variant": "no_grad"}),
    "inference_mode": ("gradmode", {"variant": "inference_mode"}),
    "transfer-uint8": ("transfer", {"variant": "uint8"}),
    "transfer-float32": ("transfer", {"variant": "float32"}),
    "transfer-uint8-pinned": ("transfer", {"variant": "uint8", "pinned": True}),
    "transfer-float32-pinned": ("transfer", {"variant": "float32", "pinned": True}),
    "adam-loop": ("optimizer", {"variant": "loop"}),
    "adam-foreach": ("optimizer", {"variant": "foreach"}),
    "adam-fused": ("optimizer", {"variant": "fused"}),
    "adam-capturable": ("optimizer", {"variant": "capturable"}),
    "fusion-eval": ("fusion-layer", {"variant": "eval"}),
    "fusion-train": ("fusion-layer", {"variant": "train"}),
    "pointwise": ("pointwise51", {"features": 2000}),
    "chase-register": ("pointer-chase", {"variant": "register", "hops": HOPS}),
    "chase-shared": ("pointer-chase", {"variant": "shared", "bytes": 8192, "hops": HOPS}),
    "chase-l1": ("pointer-chase", {"bytes": 8192, "hops": HOPS}),
    "chase-l2": ("pointer-chase", {"bytes": 8 * MIB, "hops": HOPS}),
    "chase-hbm": ("pointer-chase", {"bytes": 256 * MIB, "hops": HOPS}),
    "add-torch": ("vector-add", {"variant": "torch", "elements": MIB}),
    "add-triton": ("vector-add", {"variant": "triton", "elements": MIB, "block": 32, "num_warps": 1}),
    "add-cuda": ("vector-add", {"variant": "cuda", "elements": MIB}),
}
#: What becomes of them in a CUDA graph.
IN_A_GRAPH = {
    "creation-zeros": "ok",
    "nonzero-plain": "error",
    "nonzero-static": "ok",
    "nonzero-mask": "ok",
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
def folder(tmp_path_factory):
    """A working directory with a YAML for each of the cells, so that one sweep runs them all."""
    folder = tmp_path_factory.mktemp("micro")
    (folder / "cells" / "model").mkdir(parents=True)
    for name, (model, settings) in CELLS.items():
        node = OmegaConf.load(config_folder() / "model" / f"{model}.yaml")
        node.name = name
        node.module.update(settings)
        OmegaConf.save(node, folder / "cells" / "model" / f"{name}.yaml")
    before = os.getcwd()  # noqa: PTH109
    os.chdir(folder)
    yield folder
    os.chdir(before)


def sweep(names, mode: str) -> dict[str, dict]:
    """Rows of the view by name."""
    made = effbench.sweep(["--config-dir=cells", f"model={','.join(names)}", f"mode={mode}", *QUICK])
    return {row["model"]: row for row in made.results().to_dict("records")}


@pytest.fixture(scope="module")
def eager(folder):
    return sweep(CELLS, "eager")


def test_every_variant_is_ok_in_eager(eager):
    assert {name: (row["status"], row["reason"]) for name, row in eager.items() if row["status"] != "ok"} == {}
    assert set(eager) == set(CELLS)


def test_what_a_graph_can_hold(folder):
    rows = sweep(IN_A_GRAPH, "cuda-graph")
    assert {name: row["status"] for name, row in rows.items()} == IN_A_GRAPH, {n: r["reason"] for n, r in rows.items()}


def test_in_place_allocates_nothing(eager):
    tensor = 2 * 8 * MIB * 4
    peaks = {name: eager[name]["peak_allocated_bytes"] for name in ("in-place", "out-of-place", "cold")}
    assert peaks["out-of-place"] - peaks["in-place"] == 2 * tensor
    assert peaks["cold"] == peaks["out-of-place"]
    assert eager["cold"]["latency_ms"] > eager["out-of-place"]["latency_ms"], "the driver is asked each time"


def test_kernels(eager):
    kernels = {name: row["kernels"] for name, row in eager.items()}
    assert kernels["elements-whole"] == 1
    assert kernels["elements-loop"] == 2 * 16, "a product and a copy for each"
    assert kernels["fusion-train"] == kernels["fusion-eval"] + 1, "dropout"
    assert 52 <= kernels["pointwise"] <= 54, "50 products, ReLU, and a linear layer, which may be split"
    assert kernels["adam-loop"] > kernels["adam-foreach"] > kernels["adam-fused"]
    assert kernels["chase-l1"] == kernels["add-cuda"] == kernels["add-triton"] == 1


def test_farther_memory_takes_longer(eager):
    ns = {name: row["gpu_busy_ms"] * 1e6 / HOPS for name, row in eager.items() if name.startswith("chase-")}
    print({name: round(value, 2) for name, value in ns.items()})
    order = ["chase-register", "chase-l1", "chase-l2", "chase-hbm"]
    for near, far in pairwise(order):
        assert 1.3 * ns[near] < ns[far], ns
    assert ns["chase-register"] * 1.3 < ns["chase-shared"] < ns["chase-l2"], ns


# --- the kernels by themselves


def make(name, dtype=torch.float32, **settings):
    """A shipped model on the GPU with a batch of two."""
    config = OmegaConf.create({"bs": 2, "model": OmegaConf.load(config_folder() / "model" / f"{name}.yaml")})
    config.model.module.update(settings)
    node = OmegaConf.to_container(config, resolve=True)["model"]
    args, _ = make_inputs(parse_inputs(node["inputs"]), 2, dtype, "cuda", seed=1)
    return build_module(node["module"], dtype, "cuda", seed=0), args


@torch.inference_mode()
@pytest.mark.parametrize("size", [4096, 40 * MIB])
@pytest.mark.parametrize("variant", ["memory", "shared"])
def test_a_chase_goes_as_far_as_it_should(variant, size):
    size = min(size, memory_levels.SHARED_BYTES) if variant == "shared" else size
    length = memory_levels.odd(size // (memory_levels.WORD_BYTES if variant == "shared" else memory_levels.LINE_BYTES))
    like = torch.empty(1, device="cuda")
    for hops in (1, 1000, 16384):
        module = memory_levels.PointerChase(variant, bytes=size, hops=hops)
        assert [int(module(like)) for _ in range(3)] == [hops % length] * 3


@torch.inference_mode()
def test_a_chain_of_multiply_adds_has_its_result():
    for hops in (0 + 1, 31, 32, 1000, 16384):
        result = memory_levels.PointerChase("register", hops=hops)(torch.empty(1, device="cuda"))
        assert int(result) == memory_levels.register_result(hops)


@pytest.mark.filterwarnings("default")
@torch.inference_mode()
@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("elements", [1, 1000, 2**18 + 7])
def test_sums_are_those_of_torch(dtype, elements):
    x, y = (torch.randn(2, elements, device="cuda", dtype=dtype) for _ in range(2))
    assert torch.equal(VectorAdd("cuda")(x, y), x + y)
    assert torch.equal(VectorAdd("cuda", threads=32, blocks=3)(x, y), x + y), "blocks that go over the rest"
    for block, warps in ((32, 1), (1024, 4), (16384, 32)):
        # half types may be added without the detour over float32: a last bit
        torch.testing.assert_close(VectorAdd("triton", block=block, num_warps=warps)(x, y), x + y)


@pytest.mark.parametrize(
    ("name", "first", "others", "settings"),
    [
        ("elements", "whole", ["loop"], {"count": 9}),
        ("inplace", "out-of-place", ["in-place"], {"elements": 1000}),
        ("nonzero", "mask", ["nonzero", "nonzero-static", "work-then-nonzero"], {"sizes": [32, 300, 500]}),
        ("gradmode", "inference_mode", ["no_grad", "grad"], {}),
        ("fusion-layer", "eval", ["train"], {}),
        ("creation", "device", ["host", "host-pinned"], {"fill": "zeros", "elements": 100}),
        ("transfer", "uint8", ["float32"], {"pinned": True}),
    ],
)
def test_variants_return_the_same(name, first, others, settings):
    for dtype in (torch.float32, torch.bfloat16):
        outputs = {}
        for variant in (first, *others):
            module, args = make(name, dtype, variant=variant, **settings)
            with torch.inference_mode():
                outputs[variant] = module(*args).clone()
        for variant in others:
            torch.testing.assert_close(outputs[variant], outputs[first])


@pytest.mark.filterwarnings("default")  # Adam's, that a capturable one is not captured
def test_optimizers_take_the_same_steps():
    outputs = {}
    for variant in ("loop", "foreach", "fused", "capturable"):
        module, args = make("optimizer", variant=variant, layers=3, width=32, lr=0.01)
        start = module.mlp.layers[0].weight.detach().clone()
        with torch.inference_mode():
            for _ in range(3):
                moved = module(*args)
            outputs[variant] = [one.clone() for one in moved]
        assert float((outputs[variant][0] - start).abs().max()) > 0.02
    for found in outputs.values():
        for ours, theirs in zip(found, outputs["loop"], strict=True):
            torch.testing.assert_close(ours, theirs)


def test_work_of_the_host_is_done_while_the_device_works():
    """With a forward of some milliseconds and work of two, the order decides whether they are overlapped."""
    x = torch.randn(4096, 64, device="cuda")
    torch.manual_seed(0)
    module = Selection("nonzero", sizes=[64, 4096, 4096], work_us=2000).cuda()
    took = {}
    for variant in ("nonzero", "nonzero-then-work", "work-then-nonzero"):
        module.variant = variant
        times = []
        with torch.inference_mode():
            for _ in range(12):
                torch.cuda.synchronize()
                start = time.perf_counter()
                module(x)
                torch.cuda.synchronize()
                times.append(1000 * (time.perf_counter() - start))
        took[variant] = median(times[2:])
    assert took["nonzero-then-work"] > took["nonzero"] + 1.8, took
    assert took["work-then-nonzero"] < took["nonzero-then-work"] - 1, took

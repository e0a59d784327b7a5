"""TorchScript, AOTInductor, graphed callables, the backend cudagraphs: what of them can be seen
without CUDA."""

from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo.utils
from torch import nn

from effbench.measure import counters
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.callables import GraphedCallables
from effbench.modes.exported import AotInductor
from effbench.modes.scripted import JitScript, JitTrace

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    "settings", [{}, {"freeze": True}, {"optimize_for_inference": True}], ids=str
)
@pytest.mark.parametrize("mode", [JitTrace, JitScript])
def test_torchscript_follows_its_inputs(mode, settings, recwarn):
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).eval()
    with torch.inference_mode():
        prepared = mode(**settings).prepare(module, (torch.randn(1, 2, 5, 5),), {})
        for _ in range(4):
            x = torch.randn(1, 2, 5, 5)
            torch.testing.assert_close(prepared.step(x), module(x), rtol=1e-4, atol=1e-5)
    assert prepared.compile_cache == "cold"
    assert any("deprecated" in words for words in prepared.facts["deprecations"])
    assert not [w for w in recwarn if "torch.jit.trace`" in str(w.message)], "recorded, not shown"


@pytest.fixture
def graphed(monkeypatch):
    """torch.cuda.make_graphed_callables without CUDA: it replaces `forward` alike, and what it was
    given is noted."""
    made: list[tuple[int, int]] = []  # (callables, warm-ups) of each call

    def replay(wrapper):
        inner = wrapper.inner
        # a graph knows nothing of what replaces inner.forward
        call = inner if wrapper.hooks else partial(type(inner).forward, inner)
        wrapper.forward = lambda *given: call(*given)

    def make(callables, sample_args, num_warmup_iters):
        modules = callables if isinstance(callables, tuple) else (callables,)
        made.append((len(modules), num_warmup_iters))
        for module in modules:
            replay(module)
        return callables

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", make)
    return made


@pytest.mark.parametrize(
    ("settings", "made", "graphs"),
    [
        ({}, [(1, 3)], 1),
        ({"num_warmup_iters": 11}, [(1, 11)], 1),
        ({"only": ["0", "2.*"]}, [(3, 3)], 3),
        ({"only": ["0", "2.*"], "share_pool": False}, [(1, 3)] * 3, 3),
    ],
)
def test_the_whole_or_its_parts_are_graphed(graphed, settings, made, graphs):
    module = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    ).eval()
    with torch.inference_mode():
        prepared = GraphedCallables(**settings).prepare(module, (torch.randn(2, 4),), {})
        assert graphed == made
        assert prepared.facts["graphs"] == graphs
        for _ in range(3):
            x = torch.randn(2, 4)
            torch.testing.assert_close(prepared.step(x), module(x))
    if settings.get("only"):
        assert all("forward" in vars(part) for part in (prepared.step[0], *prepared.step[2])), (
            "replaced in the copy"
        )
    assert not [part for part in module.modules() if "forward" in vars(part)], (
        "the module itself stays"
    )


def test_what_the_backend_cudagraphs_skips_is_a_reason(fresh_dynamo):
    """On the CPU it skips everything, as it does on CUDA for a graph with a tensor on the CPU."""
    module = nn.Linear(4, 4).eval()
    with torch.inference_mode(), counters.Observer() as observer:
        prepared = CudaGraphsBackend().prepare(module, (torch.randn(2, 4),), {})
        x = torch.randn(2, 4)
        torch.testing.assert_close(prepared.step(x), module(x))
    read = counters.read()
    assert (read.graphs, read.cudagraph_skips, read.cache_state) == (1, 1, "cold")
    assert prepared.compile_cache == "cold"
    words = observer.degraded_reason(read, CUDA)
    assert words.startswith("1 graph(s) ran without a CUDA graph: skipping cudagraphs due to")
    assert "cpu" in words


def test_a_package_with_other_weights_is_replaced(monkeypatch, tmp_path):
    made, loaded = [], []

    def compiler(program, package_path, inductor_configs):
        made.append(Path(package_path).name)
        Path(package_path).write_text("package")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiler)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", loaded.append)
    outcomes = []
    for weights in ("a" * 64, "a" * 64, "b" * 64, "b" * 64, None):
        mode = AotInductor()
        mode.cache_dir, mode.weights = str(tmp_path), weights
        prepared = mode.prepare(nn.Linear(2, 2).eval(), (torch.randn(1, 2),), {})
        outcomes.append((prepared.compile_cache, "weights_differ" in prepared.facts))
        assert len(list(tmp_path.iterdir())) == 1, "a package takes as much space as the weights"
    assert outcomes == [
        ("cold", False),
        ("warm", False),
        ("cold", True),
        ("warm", False),
        ("cold", True),
    ]
    assert (len(made), len(loaded)) == (3, 5)

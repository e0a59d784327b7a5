"""AOTInductor and the backend cudagraphs, as far as they run without CUDA."""

from pathlib import Path

import torch
import torch._dynamo.utils
from torch import nn

from effbench.measure import counters
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.base import Example
from effbench.modes.exported import AotInductor

CUDA = torch.device("cuda")


def test_what_the_backend_cudagraphs_skips_is_a_reason(fresh_dynamo):
    """On the CPU it skips everything, as it does on CUDA for a graph with a tensor on the CPU."""
    module = nn.Linear(4, 4).eval()
    with torch.inference_mode(), counters.Observer() as observer:
        prepared = CudaGraphsBackend().prepare(module, Example((torch.randn(2, 4),)))
        x = torch.randn(2, 4)
        torch.testing.assert_close(prepared.step(x), module(x))
    assert prepared.compile_cache == "cold"
    words = observer.degraded_reason(counters.read(), CUDA)
    assert words.startswith("1 graph(s) ran without a CUDA graph: skipping cudagraphs due to")


def test_a_package_with_other_weights_is_replaced(monkeypatch, tmp_path):
    def compiler(program, package_path, inductor_configs):
        Path(package_path).write_text("package")

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compiler)
    monkeypatch.setattr(torch._inductor, "aoti_load_package", lambda path: path)
    outcomes = []
    for weights in ("a" * 64, "a" * 64, "b" * 64, "unknown"):
        example = Example((torch.randn(1, 2),), cache_dir=str(tmp_path), weights=weights)
        prepared = AotInductor().prepare(nn.Linear(2, 2).eval(), example)
        outcomes.append((prepared.compile_cache, "weights_differ" in prepared.facts))
        assert len(list(tmp_path.iterdir())) == 1, "a package takes as much space as the weights"
    assert outcomes == [("cold", False), ("warm", False), ("cold", True), ("cold", True)]

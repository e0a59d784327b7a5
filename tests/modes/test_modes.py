"""What modes need, what they refuse, and that a step means what its module means. CUDA graphs: tests/gpu."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml

from effbench.cli import config_folder
from effbench.models.build import resolve_target
from effbench.modes import base
from effbench.modes.compiled import Compiled
from effbench.modes.eager import Eager
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph, input_copier
from effbench.worker.trial import mode_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHIPPED = sorted(path.stem for path in (config_folder() / "mode").glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_yaml_names_itself_and_builds_its_mode(name):
    node = yaml.safe_load((config_folder() / "mode" / f"{name}.yaml").read_text())
    assert node["name"] == name
    mode = resolve_target(node["_target_"])(**mode_settings(node))
    assert isinstance(mode.compiles, bool)
    assert mode.settling_calls >= 1
    assert mode.compiles == (name not in ("eager", "cuda-graph", "bucketed-graph", "graphed-callables"))


def test_the_first_seven_modes_are_shipped():
    assert {
        "eager", "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "cuda-graph",
        "compile+graph",
    } <= set(SHIPPED)  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "settling"),
    [("default", 1), ("max-autotune-no-cudagraphs", 1), ("reduce-overhead", 3), ("max-autotune", 3), (None, 1)],
)
def test_cudagraph_trees_need_three_calls(mode, settling):
    assert Compiled(mode).settling_calls == settling
    assert Compiled(mode).uses_cuda_graphs == (settling == 3)


def test_options_lie_over_those_of_the_mode():
    mode = Compiled("max-autotune", options={"triton.cudagraphs": False})
    assert not mode.uses_cuda_graphs
    assert mode.options["max_autotune"] is True


@pytest.mark.parametrize(
    "mode", [CudaGraph(), CompiledCudaGraph(), Compiled("reduce-overhead")], ids=lambda mode: type(mode).__name__
)
def test_cuda_graphs_need_cuda(mode):
    assert "needs CUDA, and this cell runs on cpu" in mode.missing(CPU)


def test_eager_needs_nothing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert Eager().missing(CPU) is None
    assert CudaGraph().missing(CUDA) is None


def test_a_graph_over_a_mode_with_graphs_is_refused():
    assert "CUDA graphs of its own" in CompiledCudaGraph(inner="reduce-overhead").missing(CUDA)


class TestCompilers:
    @pytest.fixture
    def found(self, monkeypatch):
        """Compilers that are there; everything else is not."""
        names: set[str] = set()
        monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in names else None)
        monkeypatch.delenv("CC", raising=False)
        monkeypatch.delenv("CXX", raising=False)
        return names

    def test_on_the_cpu(self, found, monkeypatch):
        assert "g++ is not found" in base.needs_compiler(CPU)
        found.add("g++")
        assert base.needs_compiler(CPU) is None
        monkeypatch.setenv("CXX", "clang++")
        assert "clang++ is not found" in base.needs_compiler(CPU)
        found.add("clang++")
        assert base.needs_compiler(CPU) is None

    def test_on_cuda(self, found, monkeypatch, tmp_path):
        monkeypatch.setitem(sys.modules, "triton", None)
        assert "pip install triton" in base.needs_compiler(CUDA)
        monkeypatch.setitem(sys.modules, "triton", object())
        assert "install gcc" in base.needs_compiler(CUDA)
        found.add("clang")
        assert base.needs_compiler(CUDA) is None


def test_eager_is_the_module_itself():
    module = torch.nn.Linear(2, 2)
    assert Eager().prepare(module, (), {}).step is module


class TestCopyingInputs:
    """Into static buffers; in place, whatever is positional or named."""

    def test_one(self):
        static = torch.zeros(2)
        input_copier((static,), {})(torch.ones(2))
        assert static.tolist() == [1, 1]

    def test_several(self):
        statics, named = (torch.zeros(2), 3, torch.zeros(1)), {"k": torch.zeros(2), "flag": True}
        input_copier(statics, named)(torch.ones(2), 3, torch.full((1,), 2.0), k=torch.full((2,), 5.0), flag=True)
        assert (statics[0].tolist(), statics[2].tolist(), named["k"].tolist()) == ([1, 1], [2], [5, 5])

    def test_another_number_of_inputs(self):
        with pytest.raises(ValueError, match="zip"):
            input_copier((torch.zeros(2), torch.zeros(2)), {})(torch.ones(2))


def test_yamls_are_read_from_the_checkout_or_the_wheel():
    assert (Path(config_folder()) / "config.yaml").is_file()

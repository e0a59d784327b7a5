"""What modes need, what their settings accept, and that a step means what its module means. CUDA
graphs: tests/gpu."""

import shutil
import sys

import pytest
import torch
import torch._dynamo.utils
import yaml

from effbench.core.cell import mode_settings
from effbench.core.errors import ConfigError
from effbench.core.settings import shipped
from effbench.models.build import resolve_target
from effbench.models.inputs import Batch
from effbench.modes import base
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.base import Mode, Prepared, uses_dynamo
from effbench.modes.bucketed import BucketedGraph
from effbench.modes.compiled import Compiled, mark_varied
from effbench.modes.eager import Eager
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.modes.inductor import checked_options

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHIPPED = sorted(path.stem for path in (shipped("conf") / "mode").glob("*.yaml"))
UNCOMPILED = ("eager", "cuda-graph", "bucketed-graph")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_yamls_name_themselves_and_build_their_modes(name):
    node = yaml.safe_load((shipped("conf") / "mode" / f"{name}.yaml").read_text())
    mode = resolve_target(node["_target_"])(**mode_settings(node))
    assert isinstance(mode, Mode)
    assert (node["name"], mode.compiles) == (name, name not in UNCOMPILED)
    assert mode.settling_calls >= 1


def test_a_users_mode_gets_the_defaults():
    class Plain(Mode):
        compiles = True

        def prepare(self, module, args, kwargs):
            return module and Prepared(module, copy_inputs=module)

    mode = Plain()
    assert (uses_dynamo(mode), uses_dynamo(Eager())) == (True, False)
    prepared = mode.prepare_training(len, lambda forward: (forward, "step"), (), {})
    assert (prepared.step, prepared.copy_inputs) == ((len, "step"), None)
    with pytest.raises(TypeError, match="Prepared, got NoneType"):
        mode.prepare_training(None, lambda forward: forward, (), {})


WITHOUT_COMPILER = [CudaGraph(), CudaGraphsBackend(), BucketedGraph()]


@pytest.mark.parametrize(
    "mode", [*WITHOUT_COMPILER, CompiledCudaGraph(), Compiled("reduce-overhead")]
)
def test_modes_that_need_cuda(mode):
    assert "needs CUDA, but this cell runs on cpu" in mode.missing(CPU)


def test_compilers(monkeypatch):
    installed: set[str] = set()
    monkeypatch.setattr(
        shutil, "which", lambda name: f"/usr/bin/{name}" if name in installed else None
    )
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert "g++ was not found" in base.needs_compiler(CPU)
    installed.add("g++")
    assert base.needs_compiler(CPU) is None
    monkeypatch.setenv("CXX", "clang++")
    assert "clang++ was not found" in base.needs_compiler(CPU)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert "pip install triton" in base.needs_compiler(CUDA)
    monkeypatch.setitem(sys.modules, "triton", object())
    assert "install gcc" in base.needs_compiler(CUDA)
    installed.add("clang")
    assert base.needs_compiler(CUDA) is None


def test_options_by_dotted_names():
    given = {"epilogue_fusion": False, "triton": {"cudagraphs": True, "unique_kernel_names": False}}
    dotted = {
        "epilogue_fusion": False,
        "triton.cudagraphs": True,
        "triton.unique_kernel_names": False,
    }
    assert checked_options(given) == checked_options(dotted) == dotted
    assert checked_options(None) == {}
    is_value = {"post_grad_fusion_options": {"a": {"b": 1}}}
    assert checked_options(is_value) == is_value


@pytest.mark.parametrize(
    ("mode", "settings", "expected"),
    [
        (
            Compiled,
            {"options": {"epilog_fusion": True}},
            "mode.options.epilog_fusion: .*did you mean epilogue_fusion",
        ),
        (
            Compiled,
            {"options": {"max_autotune": "yes"}},
            "mode.options: .*max_autotune, got str should be bool",
        ),
        (Compiled, {"mode": "fast"}, "no mode 'fast'; allowed: default, .*max-autotune"),
        (
            Compiled,
            {"dynamic": "mark"},
            "mode.dynamic .* value 'mark'; allowed: null, true, false, marked",
        ),
        (
            Compiled,
            {"fullgraph": "no"},
            "mode.fullgraph has the invalid value 'no'; allowed: true, false",
        ),
        (Compiled, {"only": ["a", 3.5]}, "mode.only must be patterns of module names"),
        (Compiled, {"only": "a", "regional": True}, "choose one of them"),
        (Compiled, {"regional": 3}, "mode.regional must be .*, got 3"),
        (CudaGraph, {"warmups": -1}, "mode.warmups must be an integer of at least 0, got -1"),
        (BucketedGraph, {"padding": "nan"}, "keep, zero"),
        (BucketedGraph, {"buckets": "x"}, "unknown buckets=x"),
    ],
)
def test_wrong_settings(mode, settings, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        mode(**settings)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_the_batch_dimension_of_every_input_is_marked():
    x, y, z, scale = torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(5), torch.zeros(())
    batch = Batch((2,), (0, 1, None, 0))
    mark_varied((x, y), {"z": z, "scale": scale}, batch)
    marked = [getattr(value, "_dynamo_dynamic_indices", None) for value in (x, y, z, scale)]
    assert marked == [{0}, {1}, None, None]


@pytest.mark.parametrize(("dynamic", "graphs"), [("marked", 1), (False, 3)])
def test_marked_takes_other_batch_sizes_without_recompiling(dynamic, graphs, fresh_dynamo):
    mode = Compiled(dynamic=dynamic)
    mode.batch = Batch((5, 6, 7), (1,))
    module = torch.nn.Linear(4, 4).eval()
    settings = {"backend": "eager", "dynamic": None if dynamic == "marked" else dynamic}
    step = mode.selection.apply(module, **settings).step
    inputs = [torch.randn(3, bs, 4) for bs in (5, 6, 7)]
    mode.mark((inputs[0],), {})
    for x in inputs:
        torch.testing.assert_close(step(x), module(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs

"""What modes need, what their settings accept, and that a step means what its module means. CUDA
graphs: tests/gpu."""

import importlib.util
import shutil
from functools import partial

import pytest
import torch
import torch._dynamo.utils
import yaml

from effbench.core.cell import mode_settings
from effbench.core.errors import ConfigError, UnsupportedError
from effbench.core.settings import shipped
from effbench.models.build import resolve_target
from effbench.models.inputs import Batch
from effbench.modes import base
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.base import Example, Mode, Prepared
from effbench.modes.bucketed import BucketedGraph
from effbench.modes.compiled import Compiled, mark_varied
from effbench.modes.graphs import CompiledCudaGraph, CudaGraph
from effbench.modes.inductor import SINCE, checked_options
from effbench.modes.piecewise import PiecewiseGraph

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SHIPPED = sorted(path.stem for path in (shipped("conf") / "mode").glob("*.yaml"))
UNCOMPILED = ("eager", "cuda-graph", "bucketed-graph")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_yamls_name_themselves_and_build_their_modes(name):
    node = yaml.safe_load((shipped("conf") / "mode" / f"{name}.yaml").read_text())
    mode = resolve_target(node["_target_"])(**mode_settings(node))
    assert isinstance(mode, Mode)
    assert (node["name"], mode.compiles) == (name, name not in UNCOMPILED)


def test_a_users_mode_gets_the_defaults():
    class Plain(Mode):
        compiles = True

        def prepare(self, module, example):
            return Prepared(module, copy_inputs=module)

    forward = Plain().prepare_forward(len, Example(()))
    assert forward.step is len
    assert Plain().prepare_step(forward, Example(())) is forward


@pytest.mark.parametrize(
    "mode",
    [
        CudaGraph(),
        CudaGraphsBackend(),
        BucketedGraph(),
        PiecewiseGraph(),
        PiecewiseGraph(inner="default"),
        CompiledCudaGraph(),
        Compiled("reduce-overhead"),
    ],
)
def test_modes_that_need_cuda(mode):
    assert "needs CUDA, but this cell runs on cpu" in mode.missing(CPU)


@pytest.mark.parametrize(
    ("device", "cxx", "installed", "expected"),
    [
        (CPU, "g++", {"g++"}, "None"),
        (CPU, "clang++", {"g++"}, "clang++ was not found"),
        (CUDA, "g++", {"gcc"}, "pip install triton"),
        (CUDA, "g++", {"triton"}, "install gcc"),
        (CUDA, "g++", {"triton", "clang"}, "None"),
    ],
)
def test_compilers(monkeypatch, device, cxx, installed, expected):
    monkeypatch.setattr(shutil, "which", lambda name: installed & {name})
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: {name} & installed or None)
    assert expected in str(base.needs_compiler(device))


def test_options_by_dotted_names():
    given = {"epilogue_fusion": False, "triton": {"cudagraphs": True, "unique_kernel_names": False}}
    dotted = {
        "epilogue_fusion": False,
        "triton.cudagraphs": True,
        "triton.unique_kernel_names": False,
    }
    assert checked_options(given) == dotted
    is_value = {"post_grad_fusion_options": {"a": {"b": 1}}}
    assert checked_options(is_value) == is_value


def test_options_of_a_later_torch_are_unsupported(monkeypatch):
    monkeypatch.setattr(torch._inductor, "list_options", lambda: ["max_autotune"])
    for name, version in SINCE.items():
        with pytest.raises(UnsupportedError, match=f"{name} needs torch >= {version}"):
            Compiled(options={name: 1})


def test_options_that_torch_reads_in_calls_stay_set():
    options = {"triton.cudagraph_capture_sizes": [8], "max_autotune": True}
    with torch._inductor.config.patch(dict.fromkeys(options)):
        Compiled(options=options).compile(torch.nn.Linear(4, 4))
        read = torch._inductor.config.triton.cudagraph_capture_sizes
        assert (read, torch._inductor.config.max_autotune) == ([8], None)


@pytest.mark.parametrize(
    ("mode", "operators"), [("reduce-overhead", ["aten::mm"]), ("default", [])]
)
def test_operators_to_split_at_matter_to_cuda_graphs_only(mode, operators):
    options = {"custom_should_partition_ops": ["aten::mm"]}
    assert list(Compiled(mode, options=options).partition_ops) == operators


@pytest.mark.parametrize(
    ("mode", "settings", "expected"),
    [
        (Compiled, {"options": {"epilog_fusion": True}}, "did you mean epilogue_fusion"),
        (Compiled, {"options": {"max_autotune": "yes"}}, "max_autotune, got str should be bool"),
        (Compiled, {"mode": "fast"}, "no mode 'fast'; allowed: default, .*max-autotune"),
        (Compiled, {"dynamic": "mark"}, "value 'mark'; allowed: null, true, false, marked, unb"),
        (Compiled, {"fullgraph": "no"}, "invalid value 'no'; allowed: true, false"),
        (CudaGraph, {"warmups": -1}, "value -1; allowed: an integer of at least 0"),
        (BucketedGraph, {"buckets": "x"}, "unknown buckets=x"),
        (PiecewiseGraph, {"split_on": "softmax"}, r"a list of operators.*split_on=\[softmax\]"),
        (PiecewiseGraph, {"options": {"max_autotune": True}}, "mode.options needs mode.inner"),
    ],
)
def test_wrong_settings(mode, settings, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        mode(**settings)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_the_batch_dimension_of_every_input_is_marked():
    x, y, z = torch.zeros(3, 2), torch.zeros(5), torch.zeros(())
    mark_varied(Example((x,), {"y": y, "z": z}, Batch((2,), (1, None, 0))))
    marked = [getattr(value, "_dynamo_dynamic_indices", None) for value in (x, y, z)]
    assert marked == [{1}, None, None]


@pytest.mark.parametrize(("dynamic", "graphs"), [("marked", 2), ("unbacked", 1), (False, 3)])
def test_marked_takes_other_batch_sizes_without_recompiling(
    monkeypatch, fresh_dynamo, dynamic, graphs
):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    mode = Compiled(dynamic=dynamic)
    inputs = [torch.randn(3, bs, 4) for bs in (1, 6, 7)]  # 1 is a case of its own, unless unbacked
    example = Example((inputs[0],), batch=Batch((1, 6, 7), (1,)))
    step = mode.prepare(torch.nn.Linear(4, 4).eval(), example).step
    for x in inputs:
        step(x)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs

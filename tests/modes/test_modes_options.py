"""torch.compile's options and dimensions: what is taken, and what an error says."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo.utils

from effbench.errors import ConfigError
from effbench.modes.backends import CudaGraphsBackend
from effbench.modes.callables import GraphedCallables
from effbench.modes.compiled import Compiled, mark_batch
from effbench.modes.exported import AotInductor
from effbench.modes.inductor import checked_options
from effbench.modes.scripted import JitScript, JitTrace


def test_nested_options_are_dotted_ones():
    triton = {"cudagraphs": True, "unique_kernel_names": False}
    given = {"epilogue_fusion": False, "triton": triton, "trace.enabled": False}
    assert checked_options(given) == {
        "epilogue_fusion": False,
        "triton.cudagraphs": True,
        "triton.unique_kernel_names": False,
        "trace.enabled": False,
    }
    assert checked_options(None) == {}


def test_a_mapping_that_is_a_value_stays_whole():
    assert checked_options({"post_grad_fusion_options": {"a": {"b": 1}}}) == {
        "post_grad_fusion_options": {"a": {"b": 1}}
    }


@pytest.mark.parametrize("name", ["epilogue_fusion", "max_autotune", "fallback_random", "shape_padding"])
def test_what_the_documentation_names_exists(name):
    assert Compiled(options={name: False}).options[name] is False


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"epilog_fusion": True},
            "mode.options.epilog_fusion: .*; did you mean epilogue_fusion",
        ),
        ({"cudagraphs": True}, "mode.options.cudagraphs: Inductor has no such option; did you mean triton.cudagraphs"),
        ({"triton": {"cudagraph": True}}, "mode.options.triton.cudagraph: .*; did you mean triton.cudagraphs"),
        ({"qqqqq": 1}, "mode.options.qqqqq: Inductor has no such option; effbench doctor --compile-options lists"),
        ({"max_autotune": "yes"}, "mode.options: Unexpected type of attr max_autotune, got str should be bool"),
    ],
)
def test_an_option_that_inductor_does_not_have(given, said):
    with pytest.raises(ConfigError, match=said) as caught:
        Compiled(options=given)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_modes_and_dynamic():
    with pytest.raises(ConfigError, match=r"torch.compile has no mode 'fast'; it has: default, .*max-autotune"):
        Compiled("fast")
    with pytest.raises(ConfigError, match=r"mode.dynamic is 'mark'; allowed: null, true, false, marked"):
        Compiled(dynamic="mark")
    with pytest.raises(ConfigError, match=r"mode.dynamic is 'mark'; allowed: null, true, false, marked"):
        CudaGraphsBackend(dynamic="mark")


def test_the_batch_dimension_of_every_input_is_marked():
    x, y, z, scale = torch.zeros(2, 3), torch.zeros(3, 2), torch.zeros(5), torch.zeros(())
    mark_batch((x, y, 7), {"z": z, "scale": scale}, ([0, 1, 0], {"z": None, "scale": 0}))
    assert (x._dynamo_dynamic_indices, y._dynamo_dynamic_indices) == ({0}, {1})
    assert not hasattr(z, "_dynamo_dynamic_indices")
    assert not hasattr(scale, "_dynamo_dynamic_indices")


@pytest.mark.parametrize(("dynamic", "graphs"), [("marked", 1), (False, 3)])
def test_marked_takes_other_batch_sizes_without_recompiling(dynamic, graphs):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    mode = Compiled(dynamic=dynamic)
    mode.batch_dims = ([1], {})
    module = torch.nn.Linear(4, 4).eval()
    step, _ = mode.selection.apply(module, backend="eager", dynamic=None if dynamic == "marked" else dynamic)
    inputs = [torch.randn(3, bs, 4) for bs in (5, 6, 7)]
    mode.mark((inputs[0],), {})
    for x in inputs:
        torch.testing.assert_close(step(x), module(x))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


@pytest.mark.parametrize(
    "mode, setting",
    [
        (Compiled, "fullgraph"),
        (CudaGraphsBackend, "fullgraph"),
        (GraphedCallables, "share_pool"),
        (AotInductor, "strict"),
        (JitTrace, "freeze"),
        (JitScript, "optimize_for_inference"),
    ],
)
@pytest.mark.parametrize("value", ["no", 1, None])
def test_a_switch_takes_true_or_false_alone(mode, setting, value):
    with pytest.raises(ConfigError, match=f"mode.{setting} is {value!r}; allowed: true, false"):
        mode(**{setting: value})
    assert getattr(mode(**{setting: True}), setting) is True


@pytest.mark.parametrize("mode", [Compiled, CudaGraphsBackend])
@pytest.mark.parametrize("value", [0, 1, "true"])
def test_dynamic_is_no_number(mode, value):
    with pytest.raises(ConfigError, match=r"mode.dynamic is .*allowed: null, true, false, marked"):
        mode(dynamic=value)


@pytest.mark.parametrize("value", [5, True, "", ["a", 3]])
def test_patterns_are_texts(value):
    for mode in (Compiled, GraphedCallables):
        with pytest.raises(ConfigError, match=r"mode.only is .*allowed: patterns of module names"):
            mode(only=value)


@pytest.mark.parametrize("value", [5, "max_autotune", ["max_autotune"]])
def test_options_are_names_with_values(value):
    for mode in (Compiled, AotInductor):
        with pytest.raises(ConfigError, match=r"mode.options is .*it takes names and values"):
            mode(options=value)

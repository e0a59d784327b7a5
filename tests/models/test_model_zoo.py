"""Every shipped YAML: it loads, resolves, builds, runs in two dtypes and is traced whole."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import effbench.models
from effbench.models.build import build_module
from effbench.models.inputs import make_inputs, parse_inputs

CONF = Path(__file__).parents[2] / "conf" / "model"
BS = 2
#: Arguments that make a heavy model small, and the shape of its first output then.
SMALL = {
    "tiny": ({}, (BS, 32)),
    "mlp": ({"width": 64}, (BS, 64)),
    "lin3": ({"sizes": [10, 50, 100, 100]}, (BS, 100)),
    "attention": ({"seq": 16, "width": 64, "heads": 4, "mlp_ratio": 2}, (BS, 16, 64)),
    "gpt2": ({"max_seq": 32, "context": 8, "layers": 2, "width": 64, "heads": 4, "vocab": 97}, (BS, 1, 97)),
    "resnet50": ({"arch": "resnet18", "channels_last": True}, (BS, 1000)),
    "bert-base": ({"seq": 16, "layers": 2, "width": 64, "heads": 4, "vocab": 97}, (BS, 16, 64)),
}
KEYS = ["name", "description", "module", "inputs", "tolerance", "allow_nonfinite"]


def load(name, **arguments):
    """The plain node `model` as a sweep composes it."""
    config = OmegaConf.create({"bs": BS, "model": OmegaConf.load(CONF / f"{name}.yaml")})
    config.model.module.update(arguments)
    if name == "resnet50" and arguments:
        config.model.inputs.x.shape = [3, 32, 32]
    return OmegaConf.to_container(config, resolve=True)["model"]


def first(output):
    return output[0] if isinstance(output, tuple) else output


def make(name, dtype):
    if name == "resnet50":
        pytest.importorskip("torchvision")
    node = load(name, **SMALL[name][0])
    args, kwargs = make_inputs(parse_inputs(node["inputs"]), BS, dtype, "cpu", seed=1)
    return build_module(node["module"], dtype, "cpu", seed=0), args, kwargs


def test_every_yaml_is_tested():
    micro = {path.stem for path in CONF.glob("*.yaml") if "effbench.models.micro." in path.read_text()}  # test_micro.py
    assert {path.stem for path in CONF.glob("*.yaml")} == {*SMALL, *micro, "custom"}


@pytest.mark.parametrize("name", SMALL)
def test_yaml_as_shipped(name):
    node = load(name)
    assert list(node) == KEYS
    assert node["name"] == name
    assert node["description"]
    assert parse_inputs(node["inputs"])


def test_custom_is_open():
    node = OmegaConf.load(CONF / "custom.yaml")
    assert list(node) == KEYS
    assert OmegaConf.is_missing(node.module, "_target_")
    assert node.name is None
    assert node.inputs == {}


@pytest.mark.parametrize("name", SMALL)
def test_runs_in_both_dtypes(name):
    outputs = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        module, args, kwargs = make(name, dtype)
        with torch.inference_mode():
            outputs[dtype] = first(module(*args, **kwargs))
        assert outputs[dtype].dtype == dtype
        assert tuple(outputs[dtype].shape) == SMALL[name][1]
        assert outputs[dtype].isfinite().all()
    exact = outputs[torch.float64]
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        assert float((outputs[dtype].double() - exact).norm() / exact.norm()) < tolerance


@pytest.mark.parametrize("name", SMALL)
def test_is_traced_without_a_break(name):
    module, args, kwargs = make(name, torch.float32)
    with torch.inference_mode():
        expected = first(module(*args, **kwargs))
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(first(compiled(*args, **kwargs)), expected)
    torch._dynamo.reset()


@pytest.mark.parametrize("name", ["mlp", "attention", "gpt2"])
def test_output_depends_on_the_input(name):
    """No signal dies on its way: each row of the batch has an output of its own, well apart."""
    module, args, kwargs = make(name, torch.float32)
    with torch.inference_mode():
        one, two = module(*args, **kwargs)
    assert float((one - two).norm() / one.norm()) > 0.5


def test_attention_is_not_lost_beside_the_residual():
    node = load("attention", heads=4, width=256)
    module = build_module(node["module"], torch.float32, "cpu", seed=0)
    (x,), _ = make_inputs(parse_inputs(node["inputs"]), 1, torch.float32, "cpu", seed=1)
    with torch.inference_mode():
        assert float((module(x) - x).norm() / x.norm()) > 0.1


@pytest.fixture
def torchvision_stand_in(monkeypatch):
    """A torchvision that knows resnet18 alone, and only without weights; the real one, if any, is put back."""

    def get_model(arch, weights, **kwargs):
        assert (arch, weights) == ("resnet18", None)
        return nn.Conv2d(3, kwargs["num_classes"], 3)

    torchvision = ModuleType("torchvision")
    torchvision.models = ModuleType("torchvision.models")
    torchvision.models.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    forget_vision()
    yield
    forget_vision()


def forget_vision():
    sys.modules.pop("effbench.models.vision", None)
    vars(effbench.models).pop("vision", None)


@pytest.mark.usefixtures("torchvision_stand_in")
@pytest.mark.parametrize("channels_last", [False, True])
def test_torchvision_model(channels_last):
    target = "effbench.models.vision.torchvision_model"
    node = {"_target_": target, "arch": "resnet18", "channels_last": channels_last, "num_classes": 8}
    model = build_module(node, torch.bfloat16, "cpu", 0)
    assert model.weight.shape == (8, 3, 3, 3)
    assert model.weight.is_contiguous(memory_format=torch.channels_last) == channels_last


def test_attention_arguments_must_fit():
    for name in ("attention", "gpt2"):
        with pytest.raises(ValueError, match="width 64 is not a multiple of heads 3"):
            build_module(load(name, width=64, heads=3)["module"], torch.float32, "cpu", 0)

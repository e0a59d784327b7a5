"""Every shipped YAML: it loads, resolves, builds, runs in two dtypes and is traced whole."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from effbench.models.build import build_module
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs

CONF = Path(__file__).parents[2] / "conf" / "model"
BS = 2
LLAMA = {"layers": 2, "width": 32, "heads": 4, "ffn": 64, "vocab": 97}
VISION = {"resnet50", "resnet18", "mobilenetv3", "vit-b"}
#: Arguments that make a heavy model small, and the shape of its first output then.
SMALL = {
    "tiny": ({}, (BS, 32)),
    "mlp": ({"width": 64}, (BS, 64)),
    "lin3": ({"sizes": [10, 50, 100, 100]}, (BS, 100)),
    "attention": ({"seq": 16, "width": 64, "heads": 4, "mlp_ratio": 2}, (BS, 16, 64)),
    "gpt2": ({"max_seq": 32, "context": 8, "layers": 2, "width": 64, "heads": 4, "vocab": 97}, (BS, 1, 97)),
    "mlp-swiglu": ({"width": 64, "depth": 2, "ffn": 160}, (BS, 64)),
    "llama-1b-decode": ({"max_seq": 32, "context": 8, **LLAMA, "kv_heads": 2}, (BS, 1, 97)),
    "llama-1b-prefill": ({"seq": 16, **LLAMA, "kv_heads": 2}, (BS, 1, 97)),
    "llama-7b-decode": ({"max_seq": 32, "context": 8, **LLAMA, "kv_heads": 4}, (BS, 1, 97)),
    "llama-7b-prefill": ({"seq": 16, **LLAMA, "kv_heads": 4}, (BS, 1, 97)),
    "moe-decode": ({"max_seq": 32, "context": 8, **LLAMA, "kv_heads": 2, "experts": 6, "top_k": 2}, (BS, 1, 97)),
    "resnet50": ({"arch": "resnet18", "channels_last": True}, (BS, 1000)),
    "resnet18": ({}, (BS, 1000)),
    "mobilenetv3": ({}, (BS, 1000)),
    "vit-b": ({"image_size": 32}, (BS, 1000)),
    "bert-base": ({"seq": 16, "layers": 2, "width": 64, "heads": 4, "vocab": 97}, (BS, 16, 64)),
}
KEYS = ["name", "description", "module", "inputs", "tolerance", "allow_nonfinite"]


def load(name, small=False, **arguments):
    """The plain node `model` as a sweep composes it. `small`: with small images too, if it has any."""
    config = OmegaConf.create({"bs": BS, "model": OmegaConf.load(CONF / f"{name}.yaml")})
    config.model.module.update(arguments)
    if name in VISION and small:
        config.model.inputs.x.shape = [3, 32, 32]
    return OmegaConf.to_container(config, resolve=True)["model"]


def first(output):
    return output[0] if isinstance(output, tuple) else output


def make(name, dtype):
    if name in VISION:
        pytest.importorskip("torchvision")
    node = load(name, small=True, **SMALL[name][0])
    args, kwargs = make_inputs(parse_inputs(node["inputs"]), BS, dtype, "cpu", seed=1)
    return build_module(node["module"], dtype, "cpu", seed=0), args, kwargs


def test_every_yaml_is_tested():
    micro = {path.stem for path in CONF.glob("*.yaml") if "effbench.experiments." in path.read_text()}  # test_micro.py
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


@pytest.mark.parametrize("name", [name for name in SMALL if name not in {"tiny", "lin3", "bert-base", "resnet50"}])
def test_output_depends_on_the_input(name):
    """No signal dies on its way: each row of the batch has an output of its own, well apart."""
    module, args, kwargs = make(name, torch.float32)
    with torch.inference_mode():
        one, two = module(*args, **kwargs)
    # averages over small images of noise are much alike, yet differ by far more than rounding does
    assert float((one - two).norm() / one.norm()) > (0.1 if name in VISION else 0.5)


def test_attention_is_not_lost_beside_the_residual():
    node = load("attention", heads=4, width=256)
    module = build_module(node["module"], torch.float32, "cpu", seed=0)
    (x,), _ = make_inputs(parse_inputs(node["inputs"]), 1, torch.float32, "cpu", seed=1)
    with torch.inference_mode():
        assert float((module(x) - x).norm() / x.norm()) > 0.1


def test_attention_arguments_must_fit():
    for name in ("attention", "gpt2"):
        with pytest.raises(ValueError, match="width 64 is not a multiple of heads 3"):
            build_module(load(name, width=64, heads=3)["module"], torch.float32, "cpu", 0)

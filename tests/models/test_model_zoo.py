"""Every shipped YAML: it loads, fits its forward, builds, runs in two dtypes and is traced."""

import pytest
import torch
from shipped import CONF, OF_EXPERIMENTS, apart, build, compiled_whole, inputs_of, load
from torch.utils._pytree import tree_leaves

from effbench.models import libraries
from effbench.models.build import resolve_target
from effbench.models.signature import mismatch
from effbench.models.spec import parse_inputs

BS = 2
LLAMA = {
    "layers": 1,
    "width": 32,
    "heads": 4,
    "kv_heads": 2,
    "ffn": 64,
    "vocab": 97,
}
DECODE = {"max_seq": 32, "context": 8}
VISION = {"resnet18", "mobilenetv3", "vit-b"}
#: Arguments that make a heavy model small, and the shape of its first output then.
SMALL = {
    "tiny": ({}, (BS, 32)),
    "mlp": ({"width": 64}, (BS, 64)),
    "lin3": ({"sizes": [10, 50, 100, 100]}, (BS, 100)),
    "attention": ({"seq": 16, "width": 64, "heads": 4, "mlp_ratio": 2}, (BS, 16, 64)),
    "gpt2": ({**DECODE, "layers": 1, "width": 64, "heads": 4, "vocab": 97}, (BS, 1, 97)),
    "mlp-swiglu": ({"width": 64, "depth": 2, "ffn": 160}, (BS, 64)),
    "llama-1b-decode": ({**DECODE, **LLAMA}, (BS, 1, 97)),
    "llama-1b-prefill": ({"seq": 16, **LLAMA}, (BS, 1, 97)),
    "moe-decode": ({**DECODE, **LLAMA, "experts": 6, "top_k": 2}, (BS, 1, 97)),
    "resnet18": ({}, (BS, 1000)),
    "mobilenetv3": ({}, (BS, 1000)),
    "vit-b": ({"image_size": 32}, (BS, 1000)),
    "bert-base": ({"seq": 16, "layers": 1, "width": 64, "heads": 4, "vocab": 97}, (BS, 16, 64)),
}
KEYS = ["name", "description", "module", "inputs", "tolerance", "allow_nonfinite"]


def small(name):
    image = None
    if name in VISION:
        libraries.load("torchvision")
        image = [3, 32, 32]
    return load(
        name,
        BS,
        image=image,
        **SMALL[name][0],
    )


NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
OF_LIBRARIES = ("diffusers", "timm", "torchvision", "transformers")  # test_networks.py


@pytest.mark.parametrize("name", sorted({*NAMES} - {*OF_LIBRARIES, "custom"}))
def test_a_yaml_is_complete_and_tested(name):
    node = load(name, BS)
    assert list(node) == KEYS
    assert node["name"] == name
    # below and in test_micro.py; "resnet50" and "-7b-" are tested networks with more layers
    assert name.replace("-7b-", "-1b-") in {*SMALL, *OF_EXPERIMENTS, "resnet50"}
    passed = {name: spec.keyword for name, spec in parse_inputs(node["inputs"]).items()}
    assert mismatch(resolve_target(node["module"]["_target_"]), passed) is None


@pytest.mark.parametrize("name", SMALL)
def test_runs_in_two_dtypes_and_is_traced_without_a_break(name):
    node = small(name)
    module = build(node)
    args, kwargs = inputs_of(node["inputs"], BS, torch.float32)
    half_args, half_kwargs = inputs_of(node["inputs"], BS, torch.bfloat16)
    with torch.inference_mode():
        exact, *_ = tree_leaves(module(*args, **kwargs))
        if name not in VISION:
            compiled, *_ = tree_leaves(compiled_whole(module)(*args, **kwargs))
            torch.testing.assert_close(compiled, exact)
        half, *_ = tree_leaves(module.bfloat16()(*half_args, **half_kwargs))
    assert exact.shape == SMALL[name][1]
    assert half.dtype == torch.bfloat16
    assert apart(half, exact) < 2e-2
    if name not in {"tiny", "lin3", "bert-base"}:
        # no signal dies on its way: each row of the batch has an output of its own, well apart;
        # averages over small images of noise are much alike, yet differ by far more than rounding
        # does
        first_row, second_row = exact
        assert apart(second_row, first_row) > (0.1 if name in VISION else 0.5)

"""Denoisers of diffusers by class, small ones, and the choice of attention."""

import warnings

import pytest
import torch
from own_cells import cpu_cell
from torch.nn.attention.flex_attention import flex_attention

from effbench.core.errors import ConfigError, UnsupportedError
from effbench.core.images import in_images
from effbench.models import attentions, libraries
from effbench.models.attention import AttentionBlock
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.inputs import make_inputs
from effbench.models.spec import parse_inputs
from effbench.modes.selective import classes_of_blocks
from effbench.workloads import quantization

BS, TOKENS, PIXELS = 2, 4, 64
CPU = torch.device("cpu")
FLUX = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 16,
    "axes_dims_rope": [4, 6, 6],
}
SD3 = {
    "num_layers": 1,
    "attention_head_dim": 8,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "caption_projection_dim": 16,
    "pooled_projection_dim": 16,
}
WAN = {
    "num_layers": 1,
    "attention_head_dim": 12,
    "num_attention_heads": 2,
    "text_dim": 16,
    "ffn_dim": 32,
}
#: Class -> values that make it small, the shape of its output, and its repeated blocks.
SMALL = {
    "FluxTransformer2DModel": (
        FLUX,
        (BS, 16, 64),
        ["FluxTransformerBlock", "FluxSingleTransformerBlock"],
    ),
    "SD3Transformer2DModel": (SD3, (BS, 16, 8, 8), None),
    "WanTransformer3DModel": (WAN, (BS, 16, 2, 8, 8), ["WanTransformerBlock"]),
}


def denoiser(arch, **settings):
    config = SMALL[arch][0]
    sizes = {"resolution": PIXELS, "seq": TOKENS, "frames": 5 if "3D" in arch else 1}
    return libraries.network("diffusers", arch=arch, config=config, **(sizes | settings)).eval()


@pytest.mark.slow
@pytest.mark.extra("diffusers")
@pytest.mark.parametrize("arch", SMALL)
def test_a_denoiser_takes_the_inputs_of_its_sizes(arch):
    torch.manual_seed(0)
    module = denoiser(arch)
    args, kwargs = make_inputs(parse_inputs(module.inputs), BS, torch.float32, "cpu", 0)
    with torch.no_grad():
        output = module(*args, **kwargs)
    _, shape, blocks = SMALL[arch]
    assert output.shape == shape
    assert output.std() > 0
    if blocks is not None:
        assert classes_of_blocks(module) == blocks


@pytest.mark.slow
@pytest.mark.extra("diffusers")
@pytest.mark.parametrize(
    ("arch", "config", "text"),
    [
        ("FluxTransformer2Model", {}, "did you mean FluxTransformer2DModel"),
        ("FluxTransformer2DModel", {"num_layer": 1}, "did you mean num_layers"),
    ],
)
def test_errors_before_a_denoiser_is_built(arch, config, text):
    with pytest.raises(ConfigError, match=text):
        libraries.check("diffusers", arch=arch, config=config)


@pytest.mark.slow
@pytest.mark.extra("diffusers")
def test_sizes_that_do_not_fit():
    with pytest.raises(ConfigError, match="multiples of 16"):
        denoiser("FluxTransformer2DModel", resolution=72)


@pytest.mark.slow
@pytest.mark.extra("diffusers")
def test_frames_of_an_image():
    with pytest.raises(UnsupportedError, match="makes images"):
        denoiser("FluxTransformer2DModel", frames=5)


@pytest.mark.parametrize(("frames", "text"), [(1, " (2 images)"), (9, " (2 videos)")])
def test_calls_of_a_denoiser_are_told_in_images(frames, text):
    module = {"library": "diffusers", "steps": 20, "frames": frames}
    row = cpu_cell(4, {"name": "flux", "module": module}).identity()
    assert in_images(row, 7) == text
    assert in_images(row, None) == ""


@pytest.mark.parametrize("causal", [False, True])
def test_eager_attention_gives_the_outputs_of_sdpa(causal):
    torch.manual_seed(0)
    block, x = AttentionBlock(seq=8, width=32, heads=2, causal=causal), torch.randn(2, 8, 32)
    with torch.no_grad():
        wanted = block(x)
        attentions.choose(block, "eager", torch.float32, CPU)
        torch.testing.assert_close(block(x), wanted)
    assert block.attention.attend is attentions.eager


def small_gpt2():
    return GPT2Decoder(2, max_seq=16, context=8, layers=1, width=16, heads=2, vocab=32)


def test_eager_attention_follows_the_mask_of_a_cache():
    module, inputs = small_gpt2(), (torch.tensor([[3], [4]]), torch.tensor([8]))
    with torch.no_grad():
        wanted = module(*inputs)
        attentions.choose(module, "eager", torch.float32, CPU)
        torch.testing.assert_close(module(*inputs), wanted)


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("cpu", torch.bfloat16, "needs CUDA"),
        ("cuda", torch.float32, "needs float16 or bfloat16"),
        ("cuda", torch.bfloat16, "takes no mask"),
    ],
)
def test_where_flash_attention_is_unsupported(device, dtype, words):
    with pytest.raises(UnsupportedError, match=words):
        attentions.choose(small_gpt2(), "flash", dtype, torch.device(device))


def test_a_module_without_the_choice():
    with pytest.raises(UnsupportedError, match="Linear does not have this choice"):
        attentions.choose(torch.nn.Linear(2, 2), "eager", torch.float32, CPU)


@pytest.mark.parametrize(("rows", "causal"), [(1, False), (8, False), (None, True), (None, False)])
def test_flex_attention_gives_the_outputs_of_sdpa(monkeypatch, rows, causal):
    # compiling it takes 15 s
    monkeypatch.setattr(attentions, "compiled_flex", lambda: flex_attention)
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 8, 16)
    mask = None
    if rows is not None:
        mask = torch.ones(rows, 8, dtype=torch.bool).tril(3)
    with warnings.catch_warnings(action="ignore"):
        output = attentions.flex(q, k, v, mask, causal)
    torch.testing.assert_close(output, attentions.sdpa(q, k, v, mask, causal))


@pytest.mark.parametrize("attention", ["flash", "flex", "sdpa"])
def test_a_copy_in_float64_needs_no_kernel_of_other_types(attention):
    torch.manual_seed(0)
    block, x = AttentionBlock(seq=8, width=32, heads=2, causal=True).eval(), torch.randn(2, 8, 32)
    with torch.no_grad():
        wanted = block(x)
        block.attention.attend = attentions.OWN[attention]
        exact = quantization.double(block)(x.double())
    torch.testing.assert_close(exact.float(), wanted)
    assert block.attention.attend is attentions.OWN[attention]


@pytest.mark.parametrize(("chosen", "copied"), [("flex_attention", "eager"), ("sdpa", "sdpa")])
def test_a_copy_in_float64_of_a_network_of_transformers(chosen, copied):
    config = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "head_dim": 8}
    module = libraries.network("transformers", arch="llama-1b", config=config, task="prefill")
    network = attentions.first_with(list(module.modules()), "set_attn_implementation")
    network.set_attn_implementation(chosen)
    double = quantization.double(module)
    wide = attentions.first_with(list(double.modules()), "set_attn_implementation")
    assert wide.config._attn_implementation == copied
    assert network.config._attn_implementation == chosen


def backends(module):
    """What the attentions of a network of diffusers use."""
    processors = [part.processor for part in module.modules() if hasattr(part, "processor")]
    return {str(processor._attention_backend.value) for processor in processors}


@pytest.mark.slow
@pytest.mark.extra("diffusers")
def test_a_copy_in_float64_of_a_denoiser():
    module = denoiser("FluxTransformer2DModel")
    attentions.choose(module, "flex", torch.float32, CPU)
    double = quantization.double(module)
    assert (backends(module), backends(double)) == ({"flex"}, {"_native_math"})
    args, kwargs = make_inputs(parse_inputs(module.inputs), BS, torch.float64, "cpu", 0)
    with torch.no_grad():
        assert double(*args, **kwargs).isfinite().all()

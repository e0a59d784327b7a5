"""What all decoders with a static cache have in common: GPT-2, Llama, and the mixture of
experts."""

import pytest
import torch
from shipped import load

from effbench.models import llama
from effbench.models.build import resolve_target
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.llama import LlamaDecoder
from effbench.models.moe import MoEDecoder

B, S, CONTEXT, V = 3, 24, 9, 53
SIZES = {
    "max_batch": B,
    "max_seq": S,
    "context": CONTEXT,
    "layers": 2,
    "width": 32,
    "heads": 4,
    "vocab": V,
}
GROUPED = SIZES | {"kv_heads": 2}
DECODERS = {
    "gpt2": (GPT2Decoder, SIZES),
    "llama": (LlamaDecoder, GROUPED | {"ffn": 48}),
    "moe": (MoEDecoder, GROUPED | {"ffn": 12, "experts": 6, "top_k": 2}),
}
TOKEN, POSITION = torch.tensor([[3], [52], [7]]), torch.tensor([CONTEXT])


def parameters_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(params=DECODERS)
def model(request):
    kind, sizes = DECODERS[request.param]
    torch.manual_seed(0)
    with torch.inference_mode():
        yield kind(**sizes).double().eval()


def test_same_call_same_output(model):
    first = model(TOKEN, POSITION).clone()
    assert first.shape == (B, 1, V)
    assert not torch.equal(model((TOKEN + 1) % V, POSITION), first)
    assert torch.equal(model(TOKEN, POSITION), first)
    # a smaller batch than the cache
    torch.testing.assert_close(model(TOKEN[:2], POSITION), first[:2])


def test_a_prompt_equals_its_tokens_one_by_one(model):
    prompt = torch.randint(0, V, (B, CONTEXT))
    whole = model(prompt, torch.arange(CONTEXT)).clone()
    caches = [buffer.clone() for buffer in model.buffers()]
    for position in range(CONTEXT):
        last = model(prompt[:, position : position + 1], torch.tensor([position]))
    torch.testing.assert_close(whole, last)
    torch.testing.assert_close(caches, list(model.buffers()))


#: What makes the caches and prompts of a YAML short.
SHORT = {"decode": {"max_seq": 8, "context": 1}, "prefill": {"seq": 8}}


@pytest.mark.parametrize("name, count", [("llama-1b", 1_235_814_400), ("llama-7b", 6_738_415_616)])
@pytest.mark.parametrize("phase", SHORT)
def test_yamls_have_the_published_numbers_of_parameters(monkeypatch, name, count, phase):
    """Counted on one layer, in memory that nothing is written to."""
    monkeypatch.setattr(llama, "draw_weights", lambda model: None)
    node = load(f"{name}-{phase}", 1, **SHORT[phase])["module"]
    make = resolve_target(node.pop("_target_"))
    layers = node.pop("layers")
    model = make(layers=1, **node)
    assert parameters_of(model) + (layers - 1) * parameters_of(model.blocks) == count

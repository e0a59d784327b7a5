"""What all decoders with a static cache have in common: GPT-2, Llama, and the mixture of
experts."""

import pytest
import torch
from shipped import load

from effbench.models import llama
from effbench.models.gpt2 import GPT2Decoder, filled_cache
from effbench.models.llama import LlamaDecoder
from effbench.models.moe import MoEDecoder

B, S, CONTEXT, V = 3, 24, 9, 53
SIZES = {"max_seq": S, "layers": 2, "width": 32, "heads": 4, "vocab": V}
GROUPED = {**SIZES, "kv_heads": 2}
DECODERS = {
    "gpt2": lambda **more: GPT2Decoder(B, **{**SIZES, **more}),
    "llama": lambda **more: LlamaDecoder(B, **{**GROUPED, "ffn": 48, **more}),
    "moe": lambda **more: MoEDecoder(B, **{**GROUPED, "ffn": 12, "experts": 6, "top_k": 2, **more}),
}
TOKEN, POSITION = torch.tensor([[3], [52], [7]]), torch.tensor([CONTEXT])


def change(first, second):
    return float((first - second).norm() / first.norm())


@pytest.fixture(params=DECODERS)
def make(request):
    def build(context=CONTEXT, **sizes):
        torch.manual_seed(0)
        return DECODERS[request.param](context=context, **sizes).eval()

    with torch.inference_mode():
        yield build


def test_same_call_same_output_and_cache(make):
    model = make().double()
    first = model(TOKEN, POSITION).clone()
    cache = [buffer.clone() for buffer in model.buffers()]
    assert first.shape == (B, 1, V)
    assert not torch.equal(model((TOKEN + 1) % V, POSITION), first)
    assert torch.equal(model(TOKEN, POSITION), first)
    assert all(torch.equal(a, b) for a, b in zip(cache, model.buffers(), strict=True))
    # a smaller batch than the cache
    torch.testing.assert_close(model(TOKEN[:2], POSITION), first[:2])


def test_a_prompt_equals_its_tokens_one_by_one(make):
    prompt, model = torch.randint(0, V, (B, CONTEXT)), make().double()
    whole = model(prompt, torch.arange(CONTEXT)).clone()
    caches = [buffer.clone() for buffer in model.buffers()]
    for position in range(CONTEXT):
        last = model(prompt[:, position : position + 1], torch.tensor([position]))
    torch.testing.assert_close(whole, last)
    torch.testing.assert_close(caches, list(model.buffers()))


def test_the_cache_matters(make):
    """A wrong cache shows in the logits far beyond the rounding of bfloat16."""
    model = make(max_seq=256, context=128, layers=4, width=256, vocab=512)
    right = model(TOKEN, torch.tensor([128])).clone()
    for block in model.blocks:
        block.attention.values.zero_()
    assert change(right, model(TOKEN, torch.tensor([128]))) > 0.1


@torch.inference_mode()
def test_experts_matter():
    torch.manual_seed(0)
    model = DECODERS["moe"](context=CONTEXT).eval()
    right = model(TOKEN, POSITION).clone()
    model.blocks[1].mlp.down.zero_()
    assert change(right, model(TOKEN, POSITION)) > 0.05


def test_cache_is_seeded_its_rows_differ_and_it_is_no_part_of_the_weights(make):
    caches = []
    for _ in range(2):
        torch.manual_seed(0)
        caches.append(filled_cache(3, 2, 16, 8, 10))
    cache = caches[0]
    assert torch.equal(*caches)
    assert torch.equal(cache[:, :, 10:], torch.zeros(3, 2, 6, 8))
    assert (cache[:, :, :10] != 0).all() and abs(float(cache[:, :, :10].std()) - 1) < 0.2
    assert not (cache[0, :, :10] == cache[1, :, :10]).any()
    assert not any("keys" in name or "values" in name for name in make().state_dict())


def test_settings_must_fit(make):
    with pytest.raises(ValueError, match=f"context -1 leaves no slot.*0 to {S - 1}"):
        make(context=-1)
    with pytest.raises(ValueError, match=f"context {S} leaves no slot.*0 to {S - 1}"):
        make(context=S)
    with pytest.raises(ValueError, match=r"is not an? .*multiple of heads 3"):
        make(heads=3)
    with pytest.raises(ValueError, match="heads 4 is not a multiple of kv_heads 3"):
        LlamaDecoder(B, **{**GROUPED, "kv_heads": 3, "context": 1})


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [(LlamaDecoder, {"ffn": 160}), (MoEDecoder, {"ffn": 32, "experts": 16, "top_k": 4})],
)
@torch.inference_mode()
def test_outputs_keep_their_size_through_32_layers_of_bfloat16(kind, sizes):
    """Inputs matter, and rounding changes little, although it decides which experts are chosen."""
    torch.manual_seed(0)
    sizes = {"layers": 32, "width": 64, "heads": 4, "kv_heads": 2, "vocab": 512, **sizes}
    model = kind(B, max_seq=128, context=64, **sizes).bfloat16().eval()
    rounded = model(TOKEN, torch.tensor([64])).double()
    exact = model.double()(TOKEN, torch.tensor([64]))
    assert 0.5 < float(exact.std()) < 2
    assert change(exact, rounded) < 0.1
    assert change(exact[0], exact[1]) > 0.5


@pytest.mark.parametrize("name, count", [("llama-1b", 1_235_814_400), ("llama-7b", 6_738_415_616)])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_yamls_have_the_published_numbers_of_parameters(monkeypatch, name, count, phase):
    """Counted on one layer, in memory that nothing is written to."""
    monkeypatch.setattr(llama, "fill_normal", lambda weights: None)
    small = {"max_batch": 1, "max_seq": 8, "context": 1} if phase == "decode" else {"seq": 8}
    node = load(f"{name}-{phase}", 1, **small)["module"]
    make = getattr(llama, node.pop("_target_").rpartition(".")[2])
    model = make(**{**node, "layers": 1})
    layer = sum(p.numel() for p in model.blocks.parameters())
    assert sum(p.numel() for p in model.parameters()) + (node["layers"] - 1) * layer == count

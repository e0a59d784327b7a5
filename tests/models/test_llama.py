"""Decoding and prefilling against each other, and both against loops over rows, positions and heads."""

import math
from pathlib import Path

import pytest
import torch
import yaml

from effbench.models import llama
from effbench.models.llama import LlamaDecoder, LlamaPrefill, rotary_tables, rotate

B, S, T, L, D, H, G, F, V, THETA = 3, 24, 11, 2, 32, 4, 2, 48, 53, 100.0
K = D // H
CONF = Path(__file__).parents[2] / "conf" / "model"
SIZES = {"layers": L, "width": D, "heads": H, "kv_heads": G, "ffn": F, "vocab": V, "theta": THETA}


def decoder(context=0, tied=True, **sizes):
    torch.manual_seed(0)
    return LlamaDecoder(max_batch=B, max_seq=S, context=context, tied=tied, **{**SIZES, **sizes}).eval()


def prefill(tied=True, **sizes):
    torch.manual_seed(0)
    return LlamaPrefill(seq=T, tied=tied, **{**SIZES, **sizes}).eval()


def tokens(length=T, seed=0):
    return torch.randint(0, V, (B, length), generator=torch.Generator().manual_seed(seed))


def normed(x, norm):
    return x / math.sqrt(float((x * x).mean()) + norm.eps) * norm.weight


def turned(x, position):
    """Each pair (i, i + K / 2) of x [K] as a complex number, turned by its angle."""
    half = K // 2
    out = x.clone()
    for i in range(half):
        angle = position * THETA ** (-2 * i / K)
        turned = complex(x[i], x[i + half]) * complex(math.cos(angle), math.sin(angle))
        out[i], out[i + half] = turned.real, turned.imag
    return out


def reference(model, row):
    """Logits [V] of the last of the tokens `row`, one position and one head at a time."""
    xs = [model.tokens.weight[token] for token in row]
    for block in model.blocks:
        attention, mlp = block.attention, block.mlp
        keys, values, added = [], [], []
        for position, x in enumerate(xs):
            y = normed(x, block.attention_norm)
            q, k, v = ((layer.weight @ y).view(-1, K) for layer in (attention.query, attention.key, attention.value))
            keys.append([turned(k[g], position) for g in range(len(k))])
            values.append(v)
            heads = []
            for h in range(len(q)):
                g = h // (len(q) // len(k))
                scores = [float(turned(q[h], position) @ key[g]) / math.sqrt(K) for key in keys]
                weights = [math.exp(score - max(scores)) for score in scores]
                heads.append(sum(w * value[g] for w, value in zip(weights, values, strict=True)) / sum(weights))
            added.append(attention.project.weight @ torch.cat(heads))
        xs = [x + more for x, more in zip(xs, added, strict=True)]
        for position, x in enumerate(xs):
            y = normed(x, block.mlp_norm)
            gate = mlp.gate.weight @ y
            xs[position] = x + mlp.down.weight @ (gate / (1 + torch.exp(-gate)) * (mlp.up.weight @ y))
    return model.head.weight @ normed(xs[-1], model.norm)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [1, G, H])
@torch.inference_mode()
def test_prefill_equals_the_reference(kv_heads, tied):
    model = prefill(tied, kv_heads=kv_heads).double()
    rows = tokens()
    expected = torch.stack([reference(model, row) for row in rows])[:, None]
    # the rotary tables hold float32's digits
    torch.testing.assert_close(model(rows), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [1, G, H])
@torch.inference_mode()
def test_decoding_token_by_token_equals_prefilling(kv_heads):
    """Each step's logits are those of the last position of a prompt that ends there, with the same weights."""
    step, whole = decoder(kv_heads=kv_heads).double(), prefill(kv_heads=kv_heads).double()
    whole.load_state_dict(step.state_dict())
    rows = tokens()
    for position in range(T):
        logits = step(rows[:, position : position + 1], torch.tensor([position]))
        assert logits.shape == (B, 1, V)
        torch.testing.assert_close(logits, whole(rows[:, : position + 1]), rtol=1e-9, atol=1e-11)


@torch.inference_mode()
def test_what_lies_beyond_the_position_is_not_read():
    model = decoder(context=16)
    token, position = tokens(1), torch.tensor([9])
    right = model(token, position).clone()
    for block in model.blocks:
        block.attention.keys[:, :, 10:] = 1e4
        block.attention.values[:, :, 10:] = 1e4
    assert torch.equal(model(token, position), right)
    model.blocks[0].attention.values[:, :, 8] += 1
    assert not torch.equal(model(token, position), right)


@torch.inference_mode()
def test_same_call_same_output_and_cache():
    model = decoder(context=9)
    token, position = tokens(1), torch.tensor([9])
    first = model(token, position).clone()
    cache = [buffer.clone() for buffer in model.buffers()]
    assert not torch.equal(model((token + 1) % V, position), first)
    assert torch.equal(model(token, position), first)
    assert all(torch.equal(a, b) for a, b in zip(cache, model.buffers(), strict=True))


@torch.inference_mode()
def test_smaller_batch_than_the_cache():
    model = decoder(context=9)
    token, position = tokens(1), torch.tensor([9])
    torch.testing.assert_close(model(token[:2], position), model(token, position)[:2])


def test_rotation_depends_on_the_distance_alone():
    cos, sin = rotary_tables(100, K, THETA)
    q, k = torch.randn(2, 1, 1, 1, K)
    products = [
        float((rotate(q, cos[i : i + 1], sin[i : i + 1]) * rotate(k, cos[i + 7 : i + 8], sin[i + 7 : i + 8])).sum())
        for i in (0, 3, 90)
    ]
    assert products == pytest.approx([products[0]] * 3, rel=1e-4)
    assert products[0] != pytest.approx(float((q * k).sum()), rel=1e-3)


@pytest.mark.parametrize("make", [decoder, prefill])
def test_tied_and_untied_heads(make):
    tied, untied = make(tied=True), make(tied=False)
    assert tied.head.weight is tied.tokens.weight
    assert untied.head.weight is not untied.tokens.weight
    assert sum(p.numel() for p in untied.parameters()) - sum(p.numel() for p in tied.parameters()) == V * D
    assert not torch.allclose(untied.head.weight, untied.tokens.weight)


@pytest.mark.parametrize("name, count", [("llama-1b", 1_235_814_400), ("llama-7b", 6_738_415_616)])
@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_yamls_have_the_published_numbers_of_parameters(monkeypatch, name, count, phase):
    """Counted on one layer, in memory that nothing is written to."""
    monkeypatch.setattr(llama, "fill_normal", lambda weights: None)
    node = yaml.safe_load((CONF / f"{name}-{phase}.yaml").read_text())["module"]
    small = {"max_batch": 1, "max_seq": 8, "context": 1} if phase == "decode" else {"seq": 8}
    make = getattr(llama, node.pop("_target_").rpartition(".")[2])
    model = make(**{**node, **small, "layers": 1})
    layer = sum(p.numel() for p in model.blocks.parameters())
    assert sum(p.numel() for p in model.parameters()) + (node["layers"] - 1) * layer == count


def change(one, other):
    return float((one - other).norm() / one.norm())


@torch.inference_mode()
def test_outputs_keep_their_size_through_32_layers_of_bfloat16():
    sizes = {"layers": 32, "width": 64, "heads": 4, "kv_heads": 2, "ffn": 160, "vocab": 512}
    torch.manual_seed(0)
    step = LlamaDecoder(max_batch=2, max_seq=128, context=64, **sizes).bfloat16().eval()
    torch.manual_seed(0)
    whole = LlamaPrefill(seq=64, **sizes).bfloat16().eval()
    position = torch.tensor([64])
    one, other = step(torch.tensor([[3], [4]]), position).float().clone(), step(torch.tensor([[5], [4]]), position)
    assert 0.5 < float(one.std()) < 2
    assert change(one[0], other[0].float()) > 0.5 and torch.equal(one[1], other[1].float())
    prompt = torch.randint(0, 512, (1, 64))
    earlier = torch.randint(0, 512, (1, 64))
    earlier[:, -1] = prompt[:, -1]
    last = prompt.clone()
    last[:, -1] = (last[:, -1] + 1) % 512
    right = whole(prompt).float()
    assert 0.5 < float(right.std()) < 2
    assert change(right, whole(last).float()) > 0.5
    assert change(right, whole(earlier).float()) > 0.3, "the tokens before count too"
    for block in step.blocks:
        block.attention.values.zero_()
    assert change(one, step(torch.tensor([[3], [4]]), position).float()) > 0.1, "the cache counts"


@pytest.mark.parametrize("which", ["decode", "prefill"])
def test_compiles_whole(which):
    model, given = (decoder(9), (tokens(1), torch.tensor([9]))) if which == "decode" else (prefill(), (tokens(),))
    torch._dynamo.reset()
    with torch.inference_mode():
        expected = model(*given).clone()
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(*given), expected)
    torch._dynamo.reset()


def test_sizes_must_fit():
    for make in (decoder, prefill):
        with pytest.raises(ValueError, match="width 32 is not an even multiple of heads 3"):
            make(heads=3)
        with pytest.raises(ValueError, match="heads 4 is not a multiple of kv_heads 3"):
            make(kv_heads=3)
    with pytest.raises(ValueError, match=f"context {S} leaves no slot.*0 to {S - 1}"):
        decoder(context=S)

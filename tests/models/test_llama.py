"""Decoding and prefilling against each other, and both against loops over rows, positions and heads."""

import math
from pathlib import Path

import pytest
import torch
import yaml

from effbench.models import llama
from effbench.models.llama import LlamaDecoder, LlamaPrefill

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
    angles = position * THETA ** (-2 * torch.arange(half, dtype=torch.float64) / K)
    turned = torch.complex(x[:half], x[half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag])


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

"""Transformers against their formulas written out: GPT-2, Llama, SwiGLU, the mixture of experts."""

import math
from unittest import mock

import pytest
import torch

from effbench.models.gpt2 import GPT2Decoder
from effbench.models.llama import LlamaDecoder, LlamaPrefill
from effbench.models.moe import MixtureOfExperts
from effbench.models.swiglu import SwiGLUStack
from effbench.models.weights import fill_normal

B, S, T, CONTEXT, D, H, F, V, THETA, EXPERTS = 3, 24, 11, 9, 32, 4, 48, 53, 100.0, 6
K = D // H
SIZES = {"layers": 2, "width": D, "heads": H, "vocab": V}


@pytest.fixture(autouse=True)
def inference():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def attended(q, k, v, mask=0.0):
    return ((q @ k.mT / math.sqrt(K) + mask).softmax(-1) @ v).transpose(1, 2).flatten(2)


def gpt2(model, token, position):
    """The new key and value follow those of the slots before: nothing is masked."""
    x = model.tokens(token) + model.positions.weight[position]
    for block in model.blocks:
        attention = block.attention
        parts = attention.qkv(block.attention_norm(x)).chunk(3, dim=-1)
        q, k, v = (part.view(-1, 1, H, K).transpose(1, 2) for part in parts)
        keys = torch.cat([attention.keys[:, :, :position], k], dim=2)
        values = torch.cat([attention.values[:, :, :position], v], dim=2)
        x = x + attention.project(attended(q, keys, values))
        hidden = block.expand(block.mlp_norm(x))
        gate = torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))
        x = x + block.contract(0.5 * hidden * (1 + gate))
    return model.norm(x) @ model.tokens.weight.T


def turned(x):
    """Each pair (i, i + K / 2) of x [B, heads, T, K] as a complex number, turned by its angle."""
    angles = torch.arange(T)[:, None] * THETA ** (
        -2 * torch.arange(K // 2, dtype=torch.float64) / K
    )
    numbers = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([numbers.real, numbers.imag], dim=-1)


def normed(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def swiglu(x, gate, up, down):
    gate = x @ gate.T
    return (gate / (1 + torch.exp(-gate)) * (x @ up.T)) @ down.T


def fed_forward(x, norm, mlp):
    return x + swiglu(normed(x, norm), mlp.gate.weight, mlp.up.weight, mlp.down.weight)


def llama(model, rows):
    x = model.tokens(rows)
    for block in model.blocks:
        attention, y = block.attention, normed(x, block.attention_norm)
        layers = (attention.query, attention.key, attention.value)
        q, k, v = (layer(y).unflatten(-1, (-1, K)).transpose(1, 2) for layer in layers)
        k, v = (part.repeat_interleave(H // part.shape[1], dim=1) for part in (turned(k), v))
        later = torch.full((T, T), -torch.inf).triu(1)
        x = x + attention.project(attended(turned(q), k, v, later))
        x = fed_forward(x, block.mlp_norm, block.mlp)
    return model.head(normed(x[:, -1:], model.norm))


def mixture(moe, token):
    logits, order = moe.router(token).sort(descending=True)
    chosen = zip(logits[: moe.top_k].softmax(0), order[: moe.top_k], strict=True)
    return sum(weight * swiglu(token, *moe.gate_up[e], moe.down[e].T) for weight, e in chosen)


def test_gpt2():
    """The last position sees what the step before it wrote."""
    model = GPT2Decoder(max_batch=B, max_seq=S, context=CONTEXT, **SIZES).double().eval()
    token = torch.tensor([[3], [52], [7]])
    for position in (0, 5, CONTEXT, CONTEXT + 1):
        expected = gpt2(model, token, position)
        torch.testing.assert_close(
            model(token, torch.tensor([position])), expected, rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize(("kv_heads", "tied"), [(1, True), (2, False), (H, True)])
def test_llama_of_a_prompt_and_token_by_token(kv_heads, tied):
    """Each step's logits are those of the last position of a prompt that ends there, with the same
    weights."""
    sizes = {"kv_heads": kv_heads, "ffn": F, "theta": THETA, "tied": tied, **SIZES}
    whole = LlamaPrefill(seq=T, **sizes).double().eval()
    step = LlamaDecoder(max_batch=B, max_seq=S, context=0, **sizes).double().eval()
    step.load_state_dict(whole.state_dict())
    rows = torch.randint(0, V, (B, T))
    # the rotary tables hold float32's digits
    torch.testing.assert_close(whole(rows), llama(whole, rows), rtol=1e-6, atol=1e-6)
    for position in range(T):
        logits = step(rows[:, position : position + 1], torch.tensor([position]))
        torch.testing.assert_close(logits, whole(rows[:, : position + 1]), rtol=1e-9, atol=1e-11)


def test_swiglu_and_each_layer_counts():
    model = SwiGLUStack(width=D, depth=8, ffn=F).double().eval()
    x = torch.randn(B, D, dtype=torch.float64)
    expected = x
    for norm, mlp in zip(model.norms, model.mlps, strict=True):
        before = expected
        expected = fed_forward(before, norm, mlp)
        assert float((expected - before).norm() / before.norm()) > 0.05
    torch.testing.assert_close(model(x), normed(expected, model.norm), rtol=1e-9, atol=1e-12)


def experts(dispatch="auto", top_k=2):
    moe = MixtureOfExperts(width=D, ffn=12, experts=EXPERTS, top_k=top_k, dispatch=dispatch)
    fill_normal(moe.initial_weights(residual=1.0))
    return moe.double().eval()


@pytest.mark.parametrize("dispatch", ["auto", "gather", "dense"])
@pytest.mark.parametrize("batch", [2, 3])
def test_mixture_of_experts(dispatch, batch):
    """`auto` gathers while choices are fewer than experts."""
    moe = experts(dispatch)
    x = torch.randn(batch, D, dtype=torch.float64)
    expected = torch.stack([mixture(moe, token) for token in x])
    gathers = dispatch == "gather" or (dispatch == "auto" and 2 * batch < EXPERTS)
    with mock.patch.object(moe, "dense" if gathers else "gathered", None):
        # the weights of experts are softmaxed in float32
        torch.testing.assert_close(moe(x[:, None])[:, 0], expected, rtol=1e-5, atol=1e-6)

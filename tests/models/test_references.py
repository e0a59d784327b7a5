"""GPT-2 and Llama against those of transformers; the mixture of experts against its formula."""

import re
from unittest import mock

import pytest
import torch

from effbench.models import libraries
from effbench.models.gpt2 import GPT2Decoder
from effbench.models.llama import LlamaDecoder, LlamaPrefill
from effbench.models.moe import MixtureOfExperts
from effbench.models.weights import draw_weights

B, S, T, D, H, F, V, THETA, EXPERTS = 3, 24, 11, 32, 4, 48, 53, 100.0, 6
SIZES = {
    "layers": 2,
    "width": D,
    "heads": H,
    "vocab": V,
}


@pytest.fixture(autouse=True)
def inference():
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def like(model, reference, names):
    """Return the reference with the weights of a model. `names`: pattern in the name of a weight ->
    what transformers has in its place."""
    state = {}
    for name, value in model.state_dict().items():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        if ".c_" in name and name.endswith("weight"):  # of its Conv1D
            value = value.T
        state[name] = value
    reference.load_state_dict(state)
    return reference.double().eval()


def gpt2_of_transformers(model):
    transformers = libraries.load("transformers")
    config = transformers.GPT2Config(
        n_embd=D,
        n_layer=2,
        n_head=H,
        vocab_size=V,
        n_positions=S,
    )
    names = {
        "^blocks": "h",
        "^tokens": "wte",
        "^positions": "wpe",
        "^norm": "ln_f",
        "attention_norm": "ln_1",
        "mlp_norm": "ln_2",
        "attention.qkv": "attn.c_attn",
        "attention.project": "attn.c_proj",
        "mlp.expand": "mlp.c_fc",
        "mlp.contract": "mlp.c_proj",
    }
    reference = transformers.GPT2LMHeadModel(config)
    like(model, reference.transformer, names)
    reference.tie_weights()
    return reference.double().eval()


def llama_of_transformers(model, kv_heads, tied):
    transformers = libraries.load("transformers")
    config = transformers.LlamaConfig(
        hidden_size=D,
        intermediate_size=F,
        num_hidden_layers=2,
        num_attention_heads=H,
        num_key_value_heads=kv_heads,
        vocab_size=V,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=tied,
    )
    names = {
        "^blocks": "model.layers",
        "^tokens": "model.embed_tokens",
        "^norm": "model.norm",
        "^head": "lm_head",
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.(query|key|value)": lambda match: f"self_attn.{match[1][0]}_proj",
        "attention.project": "self_attn.o_proj",
        "mlp.(gate|up|down)": r"mlp.\1_proj",
    }
    return like(model, transformers.LlamaForCausalLM(config), names)


def swiglu(x, gate, up, down):
    gate = x @ gate.T
    return (gate / (1 + torch.exp(-gate)) * (x @ up.T)) @ down.T


def mixture(moe, token):
    logits, order = moe.router(token).sort(descending=True)
    chosen = zip(logits[: moe.top_k].softmax(0), order[: moe.top_k], strict=True)
    return sum(weight * swiglu(token, *moe.gate_up[e], moe.down[e].T) for weight, e in chosen)


def test_gpt2():
    """test_decoders.py compares a prompt with its tokens one by one."""
    model = GPT2Decoder(max_batch=B, max_seq=S, context=0, **SIZES).double().eval()
    prompt = torch.randint(0, V, (B, T))
    expected = gpt2_of_transformers(model)(prompt).logits[:, -1:]
    torch.testing.assert_close(
        model(prompt, torch.arange(T)),
        expected,
        rtol=1e-9,
        atol=1e-12,
    )


@pytest.mark.parametrize(("kv_heads", "tied"), [(1, True), (2, False), (H, True)])
def test_llama_with_and_without_a_cache(kv_heads, tied):
    """test_decoders.py compares a prompt with its tokens one by one."""
    sizes = {
        "kv_heads": kv_heads,
        "ffn": F,
        "theta": THETA,
        "tied": tied,
        **SIZES,
    }
    whole = LlamaPrefill(seq=T, **sizes).double().eval()
    step = LlamaDecoder(max_batch=B, max_seq=S, context=0, **sizes).double().eval()
    step.load_state_dict(whole.state_dict())
    rows = torch.randint(0, V, (B, T))
    expected = llama_of_transformers(whole, kv_heads, tied)(rows).logits[:, -1:]
    # the rotary tables hold float32's digits
    torch.testing.assert_close(
        whole(rows),
        expected,
        rtol=1e-5,
        atol=1e-5,
    )
    logits = step(rows, torch.arange(T))
    torch.testing.assert_close(
        logits,
        whole(rows),
        rtol=1e-9,
        atol=1e-11,
    )


def experts(dispatch):
    moe = MixtureOfExperts(
        width=D,
        ffn=12,
        experts=EXPERTS,
        top_k=2,
        dispatch=dispatch,
        residual=1.0,
    )
    draw_weights(moe)
    return moe.double().eval()


@pytest.mark.parametrize(
    ("dispatch", "batch", "unused"),
    [
        ("auto", 2, "dense"),
        ("auto", 3, "gathered"),
        ("gather", 3, "dense"),
        ("dense", 2, "gathered"),
    ],
)
def test_mixture_of_experts(dispatch, batch, unused):
    """`auto` gathers while choices are fewer than experts."""
    moe = experts(dispatch)
    x = torch.randn(batch, D, dtype=torch.float64)
    expected = torch.stack([mixture(moe, token) for token in x])
    with mock.patch.object(moe, unused, None):
        # the weights of experts are softmaxed in float32
        torch.testing.assert_close(
            moe(x[:, None])[:, 0],
            expected,
            rtol=1e-5,
            atol=1e-6,
        )

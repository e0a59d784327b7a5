"""The decode step against attention written out by hand over the same keys and values."""

import math

import torch

from effbench.models.gpt2 import GPT2Decoder, filled_cache

B, S, L, D, H, V, CONTEXT = 3, 24, 2, 32, 4, 53, 9
K = D // H


def decoder():
    torch.manual_seed(0)
    return GPT2Decoder(max_batch=B, max_seq=S, context=CONTEXT, layers=L, width=D, heads=H, vocab=V).double().eval()


def normalised(x, norm):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def reference(model, token, position):
    """One row and one head at a time; the new key and value follow those of the slots before, nothing is masked."""
    rows = []
    for b in range(token.shape[0]):
        x = model.tokens.weight[token[b, 0]] + model.positions.weight[position]
        for block in model.blocks:
            attention = block.attention
            qkv = attention.qkv.weight @ normalised(x, block.attention_norm) + attention.qkv.bias
            q, k, v = qkv[:D], qkv[D : 2 * D], qkv[2 * D :]
            heads = []
            for h in range(H):
                part = slice(h * K, (h + 1) * K)
                keys = torch.cat([attention.keys[b, h, :position], k[None, part]])
                values = torch.cat([attention.values[b, h, :position], v[None, part]])
                weights = torch.exp(keys @ q[part] / math.sqrt(K))
                heads.append((weights / weights.sum()) @ values)
            x = x + attention.project.weight @ torch.cat(heads) + attention.project.bias
            hidden = gelu(block.expand.weight @ normalised(x, block.mlp_norm) + block.expand.bias)
            x = x + block.contract.weight @ hidden + block.contract.bias
        rows.append(model.tokens.weight @ normalised(x, model.norm))
    return torch.stack(rows)[:, None]


@torch.inference_mode()
def test_equals_the_reference():
    """The last position sees what the step before it wrote."""
    model, token = decoder(), torch.tensor([[3], [52], [7]])
    for position in (0, 5, CONTEXT, CONTEXT + 1):
        expected = reference(model, token, position)
        torch.testing.assert_close(model(token, torch.tensor([position])), expected, rtol=1e-9, atol=1e-12)


@torch.inference_mode()
def test_only_one_slot_is_written():
    model = decoder()
    before = [block.attention.keys.clone() for block in model.blocks]
    model(torch.tensor([[3], [52], [7]]), torch.tensor([CONTEXT]))
    for block, old in zip(model.blocks, before, strict=True):
        changed = (block.attention.keys != old).any(-1).all(1)  # [B, S]
        assert changed.nonzero()[:, 1].unique().tolist() == [CONTEXT]


def test_cache_is_seeded_its_rows_differ_and_it_is_no_part_of_the_weights():
    caches = []
    for _ in range(2):
        torch.manual_seed(0)
        caches.append(filled_cache(3, 2, 16, 8, 10))
    cache = caches[0]
    assert torch.equal(*caches)
    assert torch.equal(cache[:, :, 10:], torch.zeros(3, 2, 6, 8))
    assert (cache[:, :, :10] != 0).all() and abs(float(cache[:, :, :10].std()) - 1) < 0.2
    assert not (cache[0, :, :10] == cache[1, :, :10]).any()
    assert not any("keys" in name or "values" in name for name in decoder().state_dict())

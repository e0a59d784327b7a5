"""Routing against a loop over tokens and experts, for both ways to dispatch; the decode step around it."""

import pytest
import torch

from effbench.models.moe import MixtureOfExperts, MoEDecoder
from effbench.models.weights import fill_normal

B, D, F, E, N = 5, 32, 12, 6, 2
CACHE = {"max_seq": 24, "context": 9, "heads": 4, "kv_heads": 2}
SIZES = {**CACHE, "layers": 2, "width": D, "experts": E, "top_k": N, "ffn": F, "vocab": 53}


def experts(dispatch="auto", top_k=N):
    torch.manual_seed(0)
    moe = MixtureOfExperts(width=D, ffn=F, experts=E, top_k=top_k, dispatch=dispatch)
    fill_normal(moe.stds(residual=1.0))
    return moe.double().eval()


def reference(moe, x):
    """One token and one expert at a time."""
    rows = []
    for token in x:
        logits = [float(row @ token) for row in moe.router.weight]
        best = sorted(range(E), key=lambda e: -logits[e])[: moe.top_k]
        weights = torch.tensor([logits[e] for e in best], dtype=torch.float64).softmax(0)
        row = torch.zeros(D, dtype=torch.float64)
        for weight, e in zip(weights, best, strict=True):
            gate, up = moe.gate_up[e, 0] @ token, moe.gate_up[e, 1] @ token
            row += weight * (moe.down[e].T @ (gate / (1 + torch.exp(-gate)) * up))
        rows.append(row)
    return torch.stack(rows)


@pytest.mark.parametrize("dispatch", ["auto", "gather", "dense"])
@pytest.mark.parametrize("top_k", [1, N, E])
@pytest.mark.parametrize("batch", [1, B])
@torch.inference_mode()
def test_equals_the_reference(dispatch, top_k, batch):
    moe = experts(dispatch, top_k)
    x = torch.randn(batch, D, dtype=torch.float64)
    # the weights of experts are softmaxed in float32
    torch.testing.assert_close(moe(x[:, None])[:, 0], reference(moe, x), rtol=1e-5, atol=1e-6)


@torch.inference_mode()
def test_tokens_choose_different_experts_and_only_those_matter():
    moe = experts("dense")
    chosen = moe.router(torch.randn(64, D, dtype=torch.float64)).topk(N).indices
    assert len(chosen.unique()) == E
    assert len(chosen.sort().values.unique(dim=0)) > E
    x = torch.randn(1, 1, D, dtype=torch.float64)
    right = moe(x)
    chosen = moe.router(x[0]).topk(N).indices[0].tolist()
    for e in range(E):
        before = moe.down[e].clone()
        moe.down[e] += 1
        assert torch.equal(moe(x), right) == (e not in chosen), e
        moe.down[e] = before


@pytest.mark.parametrize("batch, gathers", [(2, True), (3, False)])
@torch.inference_mode()
def test_auto_gathers_while_choices_are_fewer_than_experts(monkeypatch, batch, gathers):
    moe = experts()
    taken = []
    for name in ("gathered", "dense"):
        method = getattr(moe, name)
        monkeypatch.setattr(moe, name, lambda *given, name=name, method=method: (taken.append(name), method(*given))[1])
    moe(torch.randn(batch, 1, D, dtype=torch.float64))
    assert taken == ["gathered" if gathers else "dense"]


@torch.inference_mode()
def test_experts_are_not_lost_beside_the_residual():
    torch.manual_seed(0)
    model = MoEDecoder(3, **SIZES).eval()
    token, position = torch.tensor([[3], [52], [7]]), torch.tensor([9])
    right = model(token, position).clone()
    model.blocks[1].mlp.down.zero_()
    assert float((model(token, position) - right).norm() / right.norm()) > 0.05


def test_settings_must_fit():
    for top_k in (0, E + 1):
        with pytest.raises(ValueError, match=f"top_k {top_k}: allowed are 1 to {E}"):
            experts(top_k=top_k)
    with pytest.raises(ValueError, match="dispatch 'sparse': allowed are auto, gather, dense"):
        experts(dispatch="sparse")

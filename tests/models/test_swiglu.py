"""SwiGLU blocks against the formula written out."""

import torch

from effbench.models.swiglu import SwiGLUStack


def normed(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def reference(model, x):
    for norm, mlp in zip(model.norms, model.mlps, strict=True):
        y = normed(x, norm)
        gate, up = y @ mlp.gate.weight.T, y @ mlp.up.weight.T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ mlp.down.weight.T
    return normed(x, model.norm)


@torch.inference_mode()
def test_equals_the_reference_and_each_layer_counts():
    torch.manual_seed(0)
    model, x = SwiGLUStack(width=32, depth=8, ffn=48).double().eval(), torch.randn(3, 32, dtype=torch.float64)
    right = model(x)
    torch.testing.assert_close(right, reference(model, x), rtol=1e-9, atol=1e-12)
    for mlp in model.mlps:
        weight = mlp.down.weight.clone()
        mlp.down.weight.zero_()
        assert float((model(x) - right).norm() / right.norm()) > 0.05
        mlp.down.weight.copy_(weight)

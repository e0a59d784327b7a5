"""SwiGLU blocks against the formula written out."""

import torch

from effbench.models.swiglu import SwiGLU, SwiGLUStack

B, D, F = 3, 32, 48


def stack(depth=2):
    torch.manual_seed(0)
    return SwiGLUStack(width=D, depth=depth, ffn=F).double().eval()


def normed(x, norm):
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def reference(model, x):
    for norm, mlp in zip(model.norms, model.mlps, strict=True):
        y = normed(x, norm)
        gate, up = y @ mlp.gate.weight.T, y @ mlp.up.weight.T
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ mlp.down.weight.T
    return normed(x, model.norm)


@torch.inference_mode()
def test_equals_the_reference():
    x = torch.randn(B, D, dtype=torch.float64)
    model = stack()
    torch.testing.assert_close(model(x), reference(model, x), rtol=1e-9, atol=1e-12)


@torch.inference_mode()
def test_layers_differ_and_each_counts():
    x = torch.randn(B, D, dtype=torch.float64)
    model = stack(depth=8)
    right = model(x)
    for mlp in model.mlps:
        weight = mlp.down.weight.clone()
        mlp.down.weight.zero_()
        assert float((model(x) - right).norm() / right.norm()) > 0.05
        mlp.down.weight.copy_(weight)
    assert not torch.allclose(model.mlps[0].gate.weight, model.mlps[1].gate.weight)


@torch.inference_mode()
def test_output_has_the_size_that_was_asked_for():
    torch.manual_seed(0)
    mlp = SwiGLU(256, 512)
    from effbench.models.weights import fill_normal

    fill_normal(mlp.stds(residual=0.5))
    assert 0.4 < float(mlp(torch.randn(64, 256)).std()) < 0.6


def test_compiles_whole():
    model, x = stack().float(), torch.randn(B, D)
    torch._dynamo.reset()
    with torch.inference_mode():
        torch.testing.assert_close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), model(x))
    torch._dynamo.reset()

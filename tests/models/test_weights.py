"""Weights out of one random vector: all filled, of the right size, none the same as another."""

import pytest
import torch
from torch import nn

from effbench.models import weights
from effbench.models.weights import draw_weights, undrawn


def test_read_round_and_round_no_row_and_no_layer_is_repeated(monkeypatch):
    monkeypatch.setattr(weights, "DRAWN", 251)
    torch.manual_seed(0)
    model = nn.ParameterList([undrawn(64, 32, std=0.5) for _ in range(6)])
    draw_weights(model)
    layers = [layer.detach() for layer in model]
    for layer in layers:
        assert float(layer.std()) == pytest.approx(0.5, rel=0.15)
        assert abs(float(layer.mean())) < 0.1
        # 384 rows begin at 251 places: those that agree are a whole round apart, and none of the
        # same layer
        assert len(layer.unique(dim=0)) == 64
    assert len(torch.cat(layers).unique(dim=0)) == 251
    assert float(torch.corrcoef(torch.stack(layers).flatten(1)).tril(-1).abs().max()) < 0.3

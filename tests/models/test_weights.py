"""Weights out of one random vector: all filled, of the right size, none the same as another."""

import pytest
import torch

from effbench.models import weights
from effbench.models.weights import NormalWeight, fill_normal


@pytest.mark.parametrize("drawn", [None, 251])
def test_all_is_filled_with_the_given_deviations(monkeypatch, drawn):
    if drawn:
        monkeypatch.setattr(weights, "DRAWN", drawn)
    a, b = torch.full((64, 32), float("nan")), torch.full((50, 20), float("nan"))
    torch.manual_seed(0)
    fill_normal(iter([NormalWeight(a, 0.5), NormalWeight(b, 2.0)]))
    for tensor, std in ((a, 0.5), (b, 2.0)):
        assert tensor.isfinite().all()
        assert float(tensor.std()) == pytest.approx(std, rel=0.15)
        assert abs(float(tensor.mean())) < 0.15 * std


def test_read_round_and_round_no_row_and_no_layer_is_repeated(monkeypatch):
    monkeypatch.setattr(weights, "DRAWN", 251)
    torch.manual_seed(0)
    layers = [torch.empty(64, 32) for _ in range(6)]
    fill_normal([NormalWeight(layer, 1.0) for layer in layers])
    # 384 rows begin at 251 places: those that agree are a whole round apart, and none of the same
    # layer
    assert all(len(layer.unique(dim=0)) == 64 for layer in layers)
    assert len(torch.cat(layers).unique(dim=0)) == 251
    correlations = torch.corrcoef(torch.stack([layer.flatten() for layer in layers]))
    assert float((correlations - torch.eye(6)).abs().max()) < 0.3

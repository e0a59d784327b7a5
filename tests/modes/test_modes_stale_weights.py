"""Fingerprints of weights: what they see, what they let pass, and what a guarded step does about
it."""

import pytest
import torch
from torch import nn

from effbench.modes.base import Prepared
from effbench.modes.stale_weights import Fingerprint, StaleWeightsError, guarded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.register_parameter("absent", None)

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda n: setattr(n[0], "weight", nn.Parameter(torch.zeros(4, 4))),
            "weight layers.0.weight: different address",
        ),
        (
            lambda n: setattr(n[0].bias, "data", torch.zeros(4)),
            "weight layers.0.bias: different address",
        ),
        (
            lambda n: setattr(n[1], "running_mean", torch.zeros(4)),
            "weight layers.1.running_mean: different address",
        ),
        (
            lambda n: n[0].double(),
            "weight layers.0.weight: dtype torch.float64, but captured as torch.float32",
        ),
        (
            lambda n: setattr(n[0], "weight", nn.Parameter(torch.zeros(2, 4))),
            "weight layers.0.weight: shape (2, 4), but captured as (4, 4)",
        ),
        (lambda n: setattr(n, "0", nn.Linear(4, 4)), "module layers.0: replaced"),
        (lambda n: delattr(n, "1"), "module layers.1: removed"),
        (lambda n: setattr(n[0], "bias", None), "weight layers.0.bias: removed"),
    ],
)
def test_what_a_graph_would_not_see(change, words):
    net = Net()
    fingerprint = Fingerprint(net)
    net.load_state_dict(Net().state_dict())
    assert fingerprint.changed() is None, "in place"
    change(net.layers)
    assert fingerprint.changed() == words
    fingerprint.renew()
    assert fingerprint.changed() is None


class Frozen:
    """Captures as a graph would, without CUDA: a step holds the tensors that the module had
    then."""

    def __init__(self, net: nn.Linear) -> None:
        self.net, self.captures = net, 0

    def __call__(self, args, kwargs) -> Prepared:
        self.captures += 1
        weight, bias = self.net.weight.detach(), self.net.bias.detach()
        return Prepared(
            lambda x: nn.functional.linear(x, weight, bias),
            copy_inputs=lambda x: None,
            facts={"a": 1},
        )


def test_refuse_names_the_weight():
    net, x = nn.Linear(4, 4), torch.ones(1, 4)
    capture = Frozen(net)
    prepared = guarded(net, "refuse", capture, (x,), {})
    with torch.no_grad():
        net.weight.zero_()
    assert torch.equal(prepared.step(x), net(x)), "in place: seen without a recapture"
    kept = net.weight
    net.weight = nn.Parameter(torch.ones(4, 4))
    with pytest.raises(
        StaleWeightsError, match=r"weight weight: different address; the graph uses the old one"
    ):
        prepared.step(x)
    with pytest.raises(StaleWeightsError):
        prepared.copy_inputs(x)
    net.weight = kept
    prepared.step(x)
    assert capture.captures == 1
    assert prepared.facts == {"a": 1, "guard": "refuse", "guarded_tensors": 2, "recaptures": 0}


def test_recapture_follows_counts_and_is_tried_again():
    net, x = nn.Linear(4, 4), torch.ones(1, 4)
    capture, fails = Frozen(net), []

    def sometimes(args, kwargs):
        if fails:
            raise RuntimeError(fails.pop())
        return capture(args, kwargs)

    prepared = guarded(net, "recapture", sometimes, (x,), {})
    for captures in (1, 2, 3):
        for _ in range(2):
            assert torch.equal(prepared.step(x), net(x))
        assert capture.captures == captures
        net.weight = nn.Parameter(torch.randn(4, 4))
    assert prepared.facts["recaptures"] == 2
    fails.append("no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        prepared.step(x)
    assert torch.equal(prepared.step(x), net(x))

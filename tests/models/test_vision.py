"""What is done to a network of torchvision, on small ones in the place of torchvision's."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import effbench.models
from effbench.models.build import build_module

TARGET = "effbench.models.vision.torchvision_model"


class Small(nn.Module):
    """Depthwise convolutions drawn so that the signal shrinks with each, as MobileNetV3's does, and a head of zeros."""

    def __init__(self, num_classes):
        super().__init__()
        layers = [nn.Conv2d(3, 16, 3)]
        for _ in range(4):
            depthwise = nn.Conv2d(16, 16, 3, groups=16, bias=False)
            nn.init.kaiming_normal_(depthwise.weight, mode="fan_out")
            layers += [nn.BatchNorm2d(16, momentum=0.01), nn.Hardswish(), depthwise]
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(16))
        self.head = nn.Linear(16, num_classes)
        nn.init.zeros_(self.head.weight)

    def forward(self, x):
        return self.head(self.layers(x).square().mean((2, 3)))


@pytest.fixture(autouse=True)
def torchvision_stand_in(monkeypatch):
    """A torchvision that knows two architectures, and only without weights; the real one, if any, is put back."""

    def get_model(arch, weights, num_classes):
        assert weights is None
        return {"conv": lambda: nn.Conv2d(3, num_classes, 3), "small": lambda: Small(num_classes)}[arch]()

    torchvision = ModuleType("torchvision")
    torchvision.models = ModuleType("torchvision.models")
    torchvision.models.get_model = get_model
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    forget_vision()
    yield
    forget_vision()


def forget_vision():
    sys.modules.pop("effbench.models.vision", None)
    vars(effbench.models).pop("vision", None)


def build(arch, dtype=torch.float32, **kwargs):
    return build_module({"_target_": TARGET, "arch": arch, "num_classes": 8, **kwargs}, dtype, "cpu", 0)


def test_torchvision_model_and_a_head_of_zeros_is_drawn():
    assert build("conv", torch.bfloat16).weight.shape == (8, 3, 3, 3)
    head = build("small").head.weight
    assert head.count_nonzero() == head.numel() and head.std() > 0.1


def sizes(model):
    """Standard deviation of what each batch norm gives for random images of another seed."""
    found = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda module, args, output: found.append(float(output.std())))
    with torch.inference_mode():
        model(torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    return found


def test_settled_batch_norms_keep_the_signal_and_leave_no_other_trace():
    plain, settled = build("small"), build("small", settled=True)
    assert not any(module.training for module in settled.modules())
    assert [m.momentum for m in settled.modules() if isinstance(m, nn.BatchNorm2d)] == [0.01] * 4 + [0.1]
    for (name, ours), theirs in zip(settled.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(settled(images), settled(images))
    plain, settled = sizes(plain), sizes(settled)
    assert plain[-1] < 0.05 * plain[0]
    assert all(abs(size - 1) < 0.1 for size in settled), settled

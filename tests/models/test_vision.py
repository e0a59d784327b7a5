"""What is done to untrained networks of torchvision, on a small one."""

import torch
from torch import nn

from effbench.models.weights import settle_batch_norms, wake


class Small(nn.Module):
    """Depthwise convolutions drawn so that the signal shrinks with each, as MobileNetV3's does, and
    a head of zeros."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 16, 3)]
        for _ in range(4):
            depthwise = nn.Conv2d(16, 16, 3, groups=16, bias=False)
            nn.init.kaiming_normal_(depthwise.weight, mode="fan_out")
            layers += [nn.BatchNorm2d(16, momentum=0.01), nn.Hardswish(), depthwise]
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(16))
        self.head = nn.Linear(16, 8)
        nn.init.zeros_(self.head.weight)
        self.eval()

    def forward(self, x):
        return self.head(self.layers(x).square().mean((2, 3)))


def sizes(model):
    """Standard deviation of what each batch norm gives for random images of another seed."""
    deviations = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(
                lambda module, args, output: deviations.append(float(output.std()))
            )
    with torch.inference_mode():
        model(torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(1)))
    return deviations


def test_settled_batch_norms_keep_the_signal_and_leave_no_other_trace():
    plain, settled = Small(), Small()
    settle_batch_norms(settled)
    assert not any(module.training for module in settled.modules())
    assert [m.momentum for m in settled.modules() if isinstance(m, nn.BatchNorm2d)] == [
        0.01
    ] * 4 + [0.1]
    for (name, ours), theirs in zip(settled.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    wake(settled)  # otherwise the output does not depend on the images
    assert (
        settled.head.weight.count_nonzero() == settled.head.weight.numel()
        and settled.head.weight.std() > 0.1
    )
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(settled(images), settled(images))
    plain, settled = sizes(plain), sizes(settled)
    assert plain[-1] < 0.05 * plain[0]
    assert all(abs(size - 1) < 0.1 for size in settled), settled

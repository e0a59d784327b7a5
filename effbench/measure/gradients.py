"""How calls record gradients: in inference mode, without gradients, or with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

INFERENCE, NO_GRAD, GRAD = "inference", "no_grad", "grad"
AUTO = "auto"


@contextmanager
def recording(mode: str) -> Iterator[None]:
    """Make calls in this mode, whatever the surrounding context is."""
    with torch.inference_mode(mode == INFERENCE), torch.set_grad_enabled(mode == GRAD):
        yield


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Leave inference mode, whose tensors compilers and the module's state cannot hold; record
    gradients as before."""
    is_recording = torch.is_grad_enabled()
    with torch.inference_mode(False), torch.set_grad_enabled(is_recording):
        yield

"""Is TorchScript still the graph mode, and does a saved model compute the same?

B batch, D width.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from effbench.claims._tools import attempt, error_facts, median_ms
from torch import nn

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check
from effbench.core.printable import first_line

GPU_SECONDS = 10


class Net(nn.Module):
    """(B, D) -> (B, D)"""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@check()
def warnings(device: torch.device, width: int = 4) -> Facts:
    """Collect the warnings of torch.jit's functions, which also name the replacement, by
    function."""
    module = Net(width).to(device).eval()
    x = torch.ones(1, width, device=device)
    with catch_warnings(), tempfile.TemporaryDirectory() as folder:
        simplefilter("ignore")
        scripted, path = torch.jit.script(module), str(Path(folder) / "net.pt")
        torch.jit.save(scripted, path)
        calls: dict[str, Callable[[], Any]] = {
            "script": lambda: torch.jit.script(module),
            "trace": lambda: torch.jit.trace(module, (x,)),
            "freeze": lambda: torch.jit.freeze(scripted),
            "save": lambda: torch.jit.save(scripted, path),
            "load": lambda: torch.jit.load(path),
        }
        facts = {name: warned_by(call) for name, call in calls.items()}
    deprecated = [name for name, warned in facts.items() if warned["is_deprecated"]]
    return {
        "functions": facts,
        "deprecated": deprecated,
        "script_and_trace_are_deprecated": is_deprecated(deprecated),
    }


def is_deprecated(names: list[str]) -> bool:
    return {"script", "trace"} <= set(names)


def warned_by(call: Callable[[], Any]) -> Facts:
    """Return all warnings of a call, regardless of filters and of earlier warnings."""
    with catch_warnings(record=True) as caught:
        simplefilter("always")
        tried = attempt(call)
    texts = {f"{w.category.__name__}: {first_line(str(w.message))}": w for w in caught}
    return {
        "is_deprecated": any(
            issubclass(w.category, (DeprecationWarning, FutureWarning))
            and "deprecated" in str(w.message)
            for w in caught
        ),
        "warnings": list(texts),
        **error_facts(tried.raised),
    }


@check()
def saved(device: torch.device, width: int = 64, batch: int = 4) -> Facts:
    """Compare a scripted and a traced module before torch.jit.save and after torch.jit.load:
    outputs bit for bit, and latency."""
    module = Net(width).to(device).eval()
    x = torch.randn(batch, width, device=device)
    with torch.inference_mode():
        return {
            "scripted": round_trip(torch.jit.script(module), module, x, device),
            "traced": round_trip(torch.jit.trace(module, (x,)), module, x, device),
        }


def round_trip(scripted: Any, module: nn.Module, x: torch.Tensor, device: torch.device) -> Facts:
    """Save, load and compare a module with x (B, D), after the warm-up calls that TorchScript's
    executor profiles."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "net.pt")
        torch.jit.save(scripted, path)
        size = Path(path).stat().st_size
        loaded = torch.jit.load(path, map_location=device)
    for function in (scripted, loaded):
        for _ in range(5):
            function(x)
    before, after, eager = scripted(x), loaded(x), module(x)
    return {
        "outputs_equal_bit_for_bit": torch.equal(before, after),
        "largest_difference": (before - after).abs().max().item(),
        "largest_difference_from_eager": (before - eager).abs().max().item(),
        "file_bytes": size,
        "eager_ms": median_ms(module, x, device=device),
        "before_saving_ms": median_ms(scripted, x, device=device),
        "after_loading_ms": median_ms(loaded, x, device=device),
    }


@Claim("S8", "PyTorch's graph mode is mainly TorchScript.")
def s8(warnings):
    also = {"deprecated": warnings.deprecated, "torch says": warnings.functions.script.warnings}
    return Answer(not warnings.script_and_trace_are_deprecated, also=also)


@Claim("S17", "A TorchScript model saved and loaded gives the same results.")
def s17(saved):
    scripted, traced = saved.scripted, saved.traced
    also = {
        "scripted, before saving and after loading (ms)": [
            scripted.before_saving_ms,
            scripted.after_loading_ms,
        ],
        "traced, before saving and after loading (ms)": [
            traced.before_saving_ms,
            traced.after_loading_ms,
        ],
    }
    return Answer(
        scripted.outputs_equal_bit_for_bit and traced.outputs_equal_bit_for_bit, also=also
    )

"""TorchScript modes: torch.jit.trace and torch.jit.script. torch deprecates both; its warnings
become facts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from effbench.models.inputs import Args, Kwargs
from effbench.modes.base import Facts, Mode, Positional, Prepared


@dataclass
class TorchScript(Mode):
    """The base class of both modes. `freeze`: make weights constants; `optimize_for_inference`:
    also freeze, and apply torch.jit's rewrites for the device."""

    freeze: bool = False
    optimize_for_inference: bool = False

    compiles = True
    uses_dynamo = False
    settling_calls = 3  # the executor profiles the first calls, then specialises the code
    # attributes are constants of a trace and copies in a script
    writes_state: tuple[str, ...] = ("parameter", "buffer")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_frozen = self.freeze or self.optimize_for_inference
        if self.is_frozen:  # which also copies the buffers
            self.writes_state = ()
            self.phases = ("inference",)

    def finish(self, scripted: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
        if self.is_frozen:
            scripted = torch.jit.freeze(scripted)
        if self.optimize_for_inference:
            scripted = torch.jit.optimize_for_inference(scripted)
        return scripted


class JitScript(TorchScript):
    """torch.jit.script: compiled from the Python source, with branches and loops."""

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        with recorded_warnings() as facts:
            scripted = self.finish(torch.jit.script(module))
        # it has its own attributes and replaced buffers
        module = None if self.is_frozen else scripted
        return Prepared(scripted, compile_cache="cold", facts=facts, module=module)


class JitTrace(TorchScript):
    """torch.jit.trace: the operators that the example inputs ran; branches and loops are baked
    in."""

    def prepare(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Prepared:
        wrapper = Positional(module, args, kwargs)
        with recorded_warnings() as facts:
            # outputs are compared with eager anyway; strict=False allows dicts as outputs
            traced = torch.jit.trace(
                wrapper, wrapper.tensors(args, kwargs), check_trace=False, strict=False
            )
            traced = self.finish(traced)
        return Prepared(wrapper.calling(traced), compile_cache="cold", facts=facts)


@contextmanager
def recorded_warnings() -> Iterator[Facts]:
    """Collect warnings as facts: `deprecations`, and `warnings` for others, such as constants that
    the tracer made."""
    facts: Facts = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield facts
    for warning in caught:
        text = str(warning.message).strip().splitlines()[0]
        is_old = issubclass(warning.category, (DeprecationWarning, FutureWarning))
        name = "deprecations" if is_old or "deprecated" in text else "warnings"
        texts = facts.setdefault(name, [])
        if text not in texts:
            texts.append(text)

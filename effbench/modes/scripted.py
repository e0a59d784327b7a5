"""TorchScript modes: torch.jit.trace and torch.jit.script. torch deprecates both; its warnings
become facts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from effbench.modes.base import Mode, Positional, Prepared
from effbench.printable import text_of


@dataclass
class TorchScript(Mode):
    """The base class of both modes. `freeze`: make weights constants; `optimize_for_inference`:
    also freeze, and apply torch.jit's rewrites for the device."""

    freeze: bool = False
    optimize_for_inference: bool = False

    compiles = True
    uses_dynamo = False
    settling_calls = 3  # the executor profiles the first calls, then specialises the code

    @property
    def writes_state(self) -> tuple[str, ...]:
        # attributes are constants of a trace and copies in a script; freezing also copies the
        # buffers
        return () if self.freeze or self.optimize_for_inference else ("parameter", "buffer")

    @property
    def phases(self) -> tuple[str, ...]:
        return ("inference", "generate") if self.writes_state else ("inference",)

    def finish(self, scripted: torch.jit.ScriptModule) -> Any:
        if self.freeze or self.optimize_for_inference:
            scripted = torch.jit.freeze(scripted)
        if self.optimize_for_inference:
            scripted = torch.jit.optimize_for_inference(scripted)
        return scripted


class JitScript(TorchScript):
    """torch.jit.script: compiled from the Python source, with branches and loops."""

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        with recorded_warnings() as facts:
            scripted = self.finish(torch.jit.script(module))
        # it has its own attributes and replaced buffers
        return Prepared(
            scripted,
            compile_cache="cold",
            facts=facts,
            module=scripted if self.writes_state else None,
        )


class JitTrace(TorchScript):
    """torch.jit.trace: the operators that the example inputs ran; branches and loops are baked
    in."""

    def prepare(self, module: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> Prepared:
        wrapper = Positional(module, args, kwargs)
        with recorded_warnings() as facts:
            # check_trace=False, because outputs are compared with eager anyway; strict=False allows
            # dicts as outputs
            try:
                traced = torch.jit.trace(
                    wrapper, wrapper.tensors(args, kwargs), check_trace=False, strict=False
                )
            except RuntimeError as error:
                _, found, why = text_of(error).rpartition("\n:")  # after all values of the output
                if not found:
                    raise
                raise TypeError(f"torch.jit.trace does not support this output: {why}") from error
            traced = self.finish(traced)
        return Prepared(wrapper.calling(traced), compile_cache="cold", facts=facts)


@contextmanager
def recorded_warnings() -> Iterator[dict[str, list[str]]]:
    """Collect warnings as facts: `deprecations`, and `warnings` for others, such as constants that
    the tracer made."""
    facts: dict[str, list[str]] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield facts
    for warning in caught:
        text = str(warning.message).strip().splitlines()[0]
        old = (
            issubclass(warning.category, (DeprecationWarning, FutureWarning))
            or "deprecated" in text
        )
        texts = facts.setdefault("deprecations" if old else "warnings", [])
        if text not in texts:
            texts.append(text)

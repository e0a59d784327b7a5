"""Inductor: its options, its caches, and what it finds out and prepares once per machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from effbench.core.errors import ConfigError, UnsupportedError, suggest
from effbench.models.build import resolve_target
from effbench.modes.base import Mode, needs_compiler

PRECOMPILE_TIMEOUT_S = 200.0
#: Inductor's options that torch 2.11 lacks -> the first version that has them.
SINCE = {
    "batch_invariant": "2.13",
    "triton.cudagraph_min_partition_size": "2.12",
    "triton.cudagraph_partition_memory_budget": "2.13",
    "triton.cudagraph_trees_generation_cloning": "2.14",
    "triton.cudagraph_dynamic_shape_rerecord_limit": "2.15",
    "triton.cudagraph_initial_mempool_allocation_gb": "2.15",
    "triton.cudagraph_managed_input_rerecord_action": "2.15",
    "triton.cudagraph_managed_input_rerecord_limit": "2.15",
}


def mode_options(mode: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of a torch.compile mode, updated with the `given` ones. Raises ConfigError
    if unknown."""
    modes = torch._inductor.list_mode_options()
    options = modes.get(mode or "default")
    if options is None:
        raise ConfigError(f"torch.compile has no mode {mode!r}; allowed: {', '.join(modes)}")
    return {**options, **checked_options(given)}


def autotunes(options: Mapping[str, Any]) -> bool:
    """Return whether Inductor times kernels beyond its few defaults, by these options."""
    by_timing = ("max_autotune", "coordinate_descent")
    return any(value for name, value in options.items() if name.startswith(by_timing))


def checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options by their dotted names: `mode.options.triton.cudagraphs=true` gives `{triton:
    {cudagraphs: true}}`, which becomes `{"triton.cudagraphs": true}`. Raises ConfigError for an
    unknown name or a wrong type, UnsupportedError for an option of a later torch."""
    known = set(torch._inductor.list_options())
    options: dict[str, Any] = {}
    for name, value in (given or {}).items():
        if isinstance(value, Mapping) and name not in known:
            options |= {f"{name}.{part}": value[part] for part in value}
        else:
            options[name] = value
    for name in options:
        if name not in known:
            refuse_option(name, known)
    if options:
        try:
            # compiles nothing, but checks the types
            torch.compile(nn.Identity(), options=options)
        except RuntimeError as error:
            raise ConfigError(f"mode.options: {str(error).splitlines()[0]}") from error
    return options


def refuse_option(name: str, known: Iterable[str]) -> NoReturn:
    """Raise UnsupportedError for an option of a later torch, ConfigError for another name."""
    if name in SINCE:
        raise UnsupportedError(
            f"mode.options.{name} needs torch >= {SINCE[name]}, and this is {torch.__version__}"
        )
    near = suggest(name, known) or "; torch._inductor.list_options() lists them"
    raise ConfigError(f"mode.options.{name}: Inductor has no such option{near}")


def set_options_of_calls(options: Mapping[str, Any]) -> None:
    """Set options of CUDA graphs for the process, because torch reads some in calls, such as the
    sizes to capture, and applies the options of a compilation only while it compiles."""
    for name, value in options.items():
        if "cudagraph_" in name:
            setattr(torch._inductor.config, name, value)


def use_caches_in(folder: str | None) -> None:
    """Make Inductor and Triton use caches in `folder`, unless it is None."""
    if folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")


def learn_vector_instructions() -> None:
    """Determine which vector instructions Inductor's C++ code may use on this machine; torch keeps
    the answer.

    Inductor compiles and loads a sample of each kind. This takes seconds that depend on the machine
    and not on the model, so it is done before timing and not counted as compile seconds; in the
    fork server it is done once. It does nothing if it was done in this process. Other processes
    find the samples in Inductor's cache: call it before `use_caches_in`.
    """
    # the function is private, and the compiler may be broken or missing: after a failure here, the
    # cell's own compilation tries again and determines the cell's status
    with suppress(Exception):
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        valid_vec_isa_list()


def precompile_headers() -> None:
    """Let Inductor precompile the C++ headers of its kernels, unless this machine has some.

    Inductor does this once per machine and keeps them with the user's temporary files. It takes
    longer than the compilation of a small model, whose compile seconds would include it.
    """
    # the name is private; after a failure here, a cell's compilation precompiles them
    with suppress(Exception):
        from torch._inductor import codecache

        if any(Path(codecache._HEADER_DIR).glob("*.[gp]ch")):
            return
        # forked, because importing torch again would take as long as the headers
        child = multiprocessing.get_context("fork").Process(target=compile_sample)
        child.start()
        child.join(PRECOMPILE_TIMEOUT_S)
        child.kill()
        child.join()


def compile_sample() -> None:
    """Compile a kernel, which is not kept, and before that the headers of all kernels."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        torch.compile(torch.sin)(torch.ones(16))


def learn_for(modes: Iterable[tuple[str, str]]) -> None:
    """Do what Inductor does once per machine, if a mode needs it and there is a C++ compiler:
    determine the vector instructions and precompile C++ headers. `modes`: targets of effbench's
    modes, with devices."""
    if needs_compiler(torch.device("cpu")) is not None:
        return
    for target, device in modes:
        mode: Any = resolve_target(target)
        if writes_cpp(mode, torch.device(device)):
            learn_vector_instructions()
            precompile_headers()
            return


def writes_cpp(mode: Mode | type[Mode], device: torch.device) -> bool:
    """Return whether Inductor may write C++ code for this mode on `device`: a C++ wrapper without
    Dynamo on all devices."""
    return mode.compiles and (device.type == "cpu" or not mode.uses_dynamo)

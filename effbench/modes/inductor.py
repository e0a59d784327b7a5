"""Inductor: its options as a user writes them, and the vector instructions that it may use on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from effbench.errors import ConfigError, nearest
from effbench.models.build import resolve_target
from effbench.modes.base import Mode, needs_compiler, uses_dynamo

#: The variable with the folder of Inductor's cache.
CACHE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def mode_options(mode: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the options of one of torch.compile's modes, updated with the `given` ones. Raises ConfigError."""
    modes = torch._inductor.list_mode_options()
    if (mode or "default") not in modes:
        raise ConfigError(f"torch.compile has no mode {mode!r}; it has: {', '.join(modes)}")
    return {**modes[mode or "default"], **checked_options(given)}


def checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return options by their dotted names: `mode.options.triton.cudagraphs=true` makes `{triton: {cudagraphs: true}}`,
    which is `{"triton.cudagraphs": true}`. Raises ConfigError for a name or a type that Inductor does not have."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"mode.options is {given!r}; it takes names and values, as mode.options.epilogue_fusion=false"
        )
    known = set(torch._inductor.list_options())
    options = dict(flat(given or {}, known))
    for name in options:
        if name.replace("-", "_") not in known:
            raise ConfigError(f"mode.options.{name}: Inductor has no such option; {hint(name, known)}")
    if options:
        try:
            torch.compile(torch.nn.Identity(), options=options)  # compiles nothing: it looks at the types
        except RuntimeError as error:
            raise ConfigError(f"mode.options: {str(error).splitlines()[0]}") from error
    return options


def flat(given: Mapping[str, Any], known: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names; a mapping that is itself an option's value stays whole."""
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in known:
            yield from flat(value, known, f"{name}.")
        else:
            yield name, value


def hint(name: str, known: set[str]) -> str:
    """Name the most similar option, also if only the part after the dot is similar."""
    last = {option.rpartition(".")[2]: option for option in sorted(known, reverse=True)}
    near = nearest(name, sorted(known)) or last.get(nearest(name.rpartition(".")[2], list(last)) or "")
    return f"did you mean {near}?" if near else "effbench doctor --compile-options lists them"


def use_caches_in(folder: str | None) -> str | None:
    """Have Inductor and Triton keep what they compile in `folder`, if there is one; return Inductor's folder so far."""
    before = os.environ.get(CACHE_FOLDER)
    if folder:
        os.environ[CACHE_FOLDER] = str(Path(folder) / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
    return before


def learn_vector_instructions(folder: str | None = None) -> None:
    """Find out once which vector instructions the C++ that Inductor writes may use on this machine.

    Inductor compiles and loads a sample of each kind: seconds that depend on the machine and not on the model. Learned
    before anything is timed, they are in no cell's compile seconds; learned in the fork server, they are spent once.
    Does nothing the second time in a process, or without a C++ compiler. `folder`: where the compiled samples are kept
    for other processes (default: Inductor's own, one a user).
    """
    if needs_compiler(torch.device("cpu")) is not None:
        return
    # private, and the compiler may be broken: what is not learned here the cell's own compilation asks again, and what
    # fails there is the cell's status
    with suppress(Exception):
        from torch._inductor.cpu_vec_isa import valid_vec_isa_list

        with variable(CACHE_FOLDER, folder):
            valid_vec_isa_list()


def learn_for(modes: Iterable[tuple[str, str]]) -> None:
    """Learn the vector instructions if a mode needs them. `modes`: targets of effbench's own, with their devices."""
    if any(writes_cpp(resolve_target(target), torch.device(device)) for target, device in modes):
        learn_vector_instructions(os.environ.get(CACHE_FOLDER))


def writes_cpp(mode: Mode | type[Mode], device: torch.device) -> bool:
    """Return whether Inductor writes C++ for this mode on `device`, or wraps its kernels in it."""
    return bool(uses_dynamo(mode) and device.type == "cpu") or mode.wraps_in_cpp


@contextmanager
def variable(name: str, value: str | None) -> Iterator[None]:
    """Set an environment variable, or unset it for None; restore it afterwards."""
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

"""Inductor's options as a user writes them: checked by name and type, with the nearest names in the error."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from effbench.errors import ConfigError


def mode_options(mode: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of one of torch.compile's modes, with the `given` ones laid over them. Raises ConfigError."""
    modes = torch._inductor.list_mode_options()
    if (mode or "default") not in modes:
        raise ConfigError(f"torch.compile has no mode {mode!r}; it has: {', '.join(modes)}")
    return {**modes[mode or "default"], **checked(given)}


def checked(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options by their dotted names: `mode.options.triton.cudagraphs=true` makes `{triton: {cudagraphs: true}}`, which
    is `{"triton.cudagraphs": true}`. Raises ConfigError for a name or a type that Inductor does not have."""
    if not isinstance(given, Mapping | None):
        raise ConfigError(
            f"mode.options is {given!r}; it takes names and values, as mode.options.epilogue_fusion=false"
        )
    known = set(torch._inductor.list_options())
    options = dict(flat(given or {}, known))
    for name in options:
        if name.replace("-", "_") not in known:
            raise ConfigError(f"mode.options.{name}: Inductor has no such option; {nearest(name, known)}")
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


def nearest(name: str, known: set[str]) -> str:
    """`nearest: triton.cudagraphs, …`: by spelling, also where only the part after the dot was meant."""
    last = {option.rpartition(".")[2]: option for option in sorted(known, reverse=True)}
    near = difflib.get_close_matches(name, sorted(known), n=3)
    near += [last[part] for part in difflib.get_close_matches(name.rpartition(".")[2], list(last), n=2)]
    found = ", ".join(list(dict.fromkeys(near))[:3])
    return f"nearest: {found}" if found else "effbench doctor --compile-options lists them"

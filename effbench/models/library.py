"""Networks of torchvision, timm and transformers by name. Each library has a module with `check` and `network`."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from torch import nn

from effbench.errors import ConfigError
from effbench.models.presets import LIBRARIES


def module_of(library: str) -> ModuleType:
    """Return effbench's module for a library. Raises ConfigError if the library cannot be imported."""
    if library not in LIBRARIES:
        raise ConfigError(f"unknown model.module.library {library!r}; allowed: {', '.join(LIBRARIES)}")
    try:
        return importlib.import_module(f"effbench.models.{LIBRARIES[library]}")
    except ModuleNotFoundError as error:
        missing = (error.name or library).partition(".")[0]
        fix = 'pip install "effbench[models]"'
        raise ConfigError(f"model={library} needs {missing}, which is not installed; fix: {fix}") from error


def network(library: str, **settings: Any) -> nn.Module:
    """Return a network whose attribute `inputs` describes its inputs. Raises ConfigError and UnsupportedError."""
    return module_of(library).network(**settings)


def check(library: str, **settings: Any) -> None:
    """Raise ConfigError if the library cannot be imported or has no such architecture, without building it."""
    module_of(library).check(**settings)

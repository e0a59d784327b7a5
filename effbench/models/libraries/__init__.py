"""Networks of torchvision, timm and transformers by name, with random weights.

Each library has a module with `check` and `network`, which gets only what `check` accepts.
"""

from __future__ import annotations

import importlib
import inspect
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch
from torch import nn

from effbench.core.errors import ConfigError
from effbench.core.printable import one_line
from effbench.models.weights import settle_batch_norms, wake

#: Operators of torchvision that its Python code refers to when it is imported.
OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
#: The declarations of operators end with this object.
_declared = torch.library.Library("torchvision", "FRAGMENT")


def network(library: str, **settings: Any) -> nn.Module:
    """Return a network whose attribute `inputs` describes its inputs. `settings`: as checked by
    `check`. Raises UnsupportedError."""
    return importlib.import_module(f"{__name__}.{library}").network(**settings)


def check(library: str, **settings: Any) -> None:
    """Raise ConfigError if the library cannot be imported, or does not know the architecture or its
    settings, without building it."""
    arch = settings["arch"]
    try:
        module = importlib.import_module(f"{__name__}.{library}")
        for name in settings.keys() - inspect.signature(module.network).parameters.keys():
            raise ConfigError(
                f"unknown setting 'model.module.{name}'; settings of {arch} itself:"
                " model.config.NAME=VALUE for transformers, else model.kwargs.NAME=VALUE"
            )
        module.check(**settings)
    except ConfigError:
        raise
    except Exception as error:  # transformers checks the values of a configuration in many ways
        raise ConfigError(
            f"{arch} of {library} refuses its settings: {one_line(error, 200)}"
        ) from error


def load(name: str) -> ModuleType:
    """Import torchvision, timm or transformers, which import torchvision if it is installed. Raises
    ConfigError if the library is not installed.

    torchvision's import fails if its compiled operators do not load, as those of PyPI's build do
    with a CPU build of torch. Then they are declared without an implementation: only detection
    needs them.
    """
    try:
        with suppress(ModuleNotFoundError):
            importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for operator in OPERATORS:
            _declared.define(operator)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f'{error.name} is not installed; fix: pip install "effbench[models]"'
        ) from error


def finish_network(model: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Return a network of images [C, H, W] with its inputs, and useful random weights."""
    model.inputs = {"x": {"shape": list(shape)}}
    wake(model)
    settle_batch_norms(model, shape, centred=False)
    return model

"""Networks of torchvision, timm and transformers by name, the import of these libraries, and
weights without pickle.

Each library has a module with `check` and `network`, which gets only what `check` accepts.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from effbench.core.errors import ConfigError, suggest
from effbench.models.catalog import LIBRARIES
from effbench.models.presets import canonical
from effbench.models.weights import settle_batch_norms, wake

#: Operators of torchvision that its Python code refers to when it is imported.
OPERATORS = ("nms", "qnms")
#: The declarations of operators end with these objects.
_declared: list[torch.library.Library] = []


class LibraryWarning(UserWarning):
    """A library of the extra `models` works in part."""


def network(library: str, **settings: Any) -> nn.Module:
    """Return a network whose attribute `inputs` describes its inputs. Raises ConfigError and
    UnsupportedError."""
    check(library, **settings)
    settings["arch"] = canonical(library, settings["arch"])
    built: nn.Module = module_of(library).network(**settings)
    return built


def check(library: str, **settings: Any) -> None:
    """Raise ConfigError if the library cannot be imported or has no such architecture, without
    building it."""
    arch = settings.get("arch")
    if not isinstance(arch, str):
        raise ConfigError(
            f"model.arch must be the name of a network, got {arch!r}; see `effbench models"
            f" {library}`"
        )
    settings["arch"] = arch = canonical(library, arch)
    module = module_of(library)
    known = inspect.signature(module.network).parameters
    for name in settings:
        if name not in known:
            where = "config" if "config" in known else "kwargs"
            raise ConfigError(
                f"unknown setting 'model.module.{name}'; settings of {arch} itself:"
                f" model.{where}.NAME=VALUE"
            )
    try:
        module.check(**settings)
    except ConfigError:
        raise
    except Exception as error:  # transformers checks the values of a configuration in many ways
        raise ConfigError(
            f"{arch} of {library} refuses its settings: {one_line(error, 200)}"
        ) from error


def module_of(library: str) -> ModuleType:
    """Return effbench's module for a library. Raises ConfigError if the library cannot be
    imported."""
    if library not in LIBRARIES:
        raise ConfigError(
            f"unknown model.module.library {library!r}; allowed: {', '.join(LIBRARIES)}"
        )
    try:
        return importlib.import_module(f"effbench.models.libraries.{library}")
    except ModuleNotFoundError as error:
        missing = (error.name or library).partition(".")[0]
        raise ConfigError(
            f"model={library} needs {missing}, which is not installed; fix: pip install"
            ' "effbench[models]"'
        ) from error


def load(name: str) -> ModuleType:
    """Import torchvision, timm or transformers. Raises ConfigError if torchvision does not match
    torch.

    timm imports torchvision, and transformers does if it is installed. torchvision's import fails
    if its compiled operators do not load. If its release is the one for this torch, as with a CPU
    build of torch and PyPI's build of torchvision, the operators are declared without an
    implementation, with a warning: only detection needs them.
    """
    if name == "transformers":
        with suppress(ModuleNotFoundError):
            _load_torchvision()
    else:
        _load_torchvision()
    return importlib.import_module(name)


def _load_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
        return
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    installed = importlib.metadata.version("torchvision")
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    wanted = f"0.{minor + 15}"  # torchvision 0.28 is built for torch 2.13, 0.29 for 2.14, …
    if major != 2 or not installed.startswith(f"{wanted}."):
        raise ConfigError(
            f"torchvision {installed} does not match torch {torch.__version__}; fix: pip install"
            f' "torchvision=={wanted}.*"'
        )
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in OPERATORS:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    importlib.import_module("torchvision")
    warnings.warn(
        f"the operators of torchvision {installed} do not load with torch {torch.__version__};"
        " classification does not need them",
        LibraryWarning,
        stacklevel=3,
    )


def unknown(
    what: str,
    name: str,
    known: Iterable[str],
    advice: str = "see `effbench models`",
) -> ConfigError:
    """Return the error for an unknown name, with the most similar known one, which may be a wrong
    guess, and advice."""
    return ConfigError(f"unknown {what} {name!r}{suggest(name, known, cutoff=0.6)}; {advice}")


def one_line(error: Exception, length: int) -> str:
    return " ".join(str(error).split())[:length]


def not_loaded(source: str, error: Exception) -> ConfigError:
    """Return the error for weights that cannot be downloaded or read."""
    return ConfigError(
        f"cannot load the weights of {source} ({one_line(error, 160)}); download them elsewhere,"
        " and give their folder with model.pretrained=FOLDER"
    )


def weights_file(path: str) -> Path:
    """Return the .safetensors file of a path: itself, or `model.safetensors` in the folder. Raises
    ConfigError."""
    given = Path(path)
    file = given / "model.safetensors" if given.is_dir() else given
    if file.suffix != ".safetensors" or not file.is_file():
        missing = "" if given.exists() else "no such file or folder; "
        raise ConfigError(
            f"model.pretrained={path}: {missing}expected a .safetensors file, or a folder with"
            " model.safetensors"
        )
    return file


def load_weights(model: nn.Module, path: str) -> None:
    """Load the weights of a `weights_file`. Raises ConfigError."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = weights_file(path)
    try:
        model.load_state_dict(load_file(file))
    except (RuntimeError, SafetensorError) as error:
        raise ConfigError(
            f"model.pretrained={path} does not fit {type(model).__name__}: {one_line(error, 200)}"
        ) from error


def finish_network(model: nn.Module, shape: tuple[int, ...], pretrained: bool | str) -> nn.Module:
    """Return a network of images [C, H, W] with its inputs, and with the weights of a file or with
    useful random ones."""
    model.inputs = {"x": {"shape": list(shape)}}
    if pretrained:
        load_weights(model, str(pretrained))
    else:
        wake(model)
        settle_batch_norms(model, shape, centred=False)
    return model

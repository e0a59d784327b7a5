"""Build a model from its YAML: set torch's flags, resolve the `_target_`, seed, construct, move it
to the device."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, suggest
from effbench.core.printable import describe
from effbench.core.python_files import module_of
from effbench.models.inputs import Step

if TYPE_CHECKING:
    from effbench.core.cell import Cell

KEY = "_target_"
#: Device of the module that is being built, for constructors that draw many weights.
DEVICE: ContextVar[torch.device | str] = ContextVar("device", default="cpu")


def set_seed(seed: int) -> None:
    """Seed torch, Python's `random` and numpy: a module may draw its weights from any of them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # numpy accepts 32 bits


def set_numerics(numerics: dict[str, Any]) -> None:
    """Set torch's global flags and all seeds. Flags that are off need no reset, because the process
    is new."""
    precision = numerics.get("matmul_precision", "highest")
    torch.set_float32_matmul_precision(precision)
    # a lower precision uses TF32 already; after both calls `medium` could not be read any more,
    # which Inductor does
    if numerics.get("tf32") and precision == "highest":
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = bool(numerics.get("tf32"))
    torch.backends.cudnn.benchmark = bool(numerics.get("cudnn_benchmark"))
    if numerics.get("deterministic"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    set_seed(numerics.get("seed", 0))


def build_module(
    module: Mapping[str, Any],
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    attention: str | None = None,
) -> nn.Module:
    """Return the module in eval mode on `device`, with floating-point weights and buffers in
    `dtype`.

    `module` holds `_target_` and the constructor's keyword arguments. Weights are drawn on the CPU,
    so that they depend only on the seed and not on the device, unless the constructor uses DEVICE.
    `attention`: as `model.attention`. Raises ConfigError for an invalid target, UnsupportedError
    for an attention that the module does not have, and any exception of the constructor.
    """
    arguments = dict(module)
    target = arguments.pop(KEY)
    make = resolve_target(target)
    set_seed(seed)
    token = DEVICE.set(device)
    try:
        built = make(**arguments)
    finally:
        DEVICE.reset(token)
    if not isinstance(built, nn.Module):
        raise ConfigError(
            f"model.module.{KEY}={target} returned the type {type(built).__name__}; it must return"
            " a torch.nn.Module"
        )
    try:
        built.eval()
    except NotImplementedError:
        # an exported program stays in the mode of its export; another module would train silently
        if not isinstance(built, torch.fx.GraphModule):
            raise

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    # as Module.to, which would also cast complex weights and so drop their imaginary parts
    built._apply(cast)
    if attention is not None:
        from effbench.models import attentions  # few cells need it

        attentions.choose(built, attention, dtype, torch.device(device))
    return built


def build_module_of(cell: Cell, device: torch.device) -> nn.Module:
    """Return the module of a cell in eval mode, as `build_module` does."""
    dtype, seed = getattr(torch, cell.dtype), cell.numerics.get("seed", 0)
    attention = cell.model.get("attention")
    return build_module(cell.model["module"], dtype, device, seed, attention)


def resolve_target(target: str, setting: str = KEY) -> Step:
    """Return the callable named by `target`: `package.module.Name`, or `path/to/file.py:Name` (a
    relative path). `setting`: what names it in a configuration. A worker's process finds modules in
    the working directory, too.

    Raises ConfigError if a part of it cannot be found or imported, or is not callable.
    """
    importlib.invalidate_caches()
    title = f"{setting}={target}"
    try:
        found = find(target)
    except ConfigError as error:
        raise ConfigError(f"{title}: {error}") from None
    except ModuleNotFoundError as error:
        reason = f"it imports {error.name}, which is not installed"
        if target.startswith(str(error.name)):
            reason = (
                f"no module named {error.name} in the working directory or the environment;"
                " allowed: my_pkg.Net or path/to/file.py:Net"
            )
        raise ConfigError(f"{title}: {reason}") from error
    except Exception as error:  # the user's file may raise anything when it is imported
        raise ConfigError(f"{title}: importing it raised {describe(error)}") from error
    if not callable(found):
        raise ConfigError(
            f"{title} is of type {type(found).__name__}, not callable; name a class or a function"
        )
    function: Step = found
    return function


def find(target: str) -> Any:
    """Return what a target names. Raises ConfigError for a name that does not exist, and what
    importing raises."""
    file, _, names = target.rpartition(":")
    if file.endswith(".py"):
        found: Any = module_of(Path(file))
    else:
        package, _, names = target.partition(".")
        found = importlib.import_module(package)
    for name in filter(None, names.split(".")):
        if hasattr(found, "__path__") and not hasattr(found, name):
            submodule = f"{found.__name__}.{name}"
            if importlib.util.find_spec(submodule):
                importlib.import_module(submodule)
        if not hasattr(found, name):
            raise ConfigError(f"there is no {name}{suggest(name, dir(found))}")
        found = getattr(found, name)
    return found

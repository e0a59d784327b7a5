"""Build a model from its YAML: set torch's flags, resolve the `_target_`, seed, construct, move it
to the device."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import random
import sys
from collections import OrderedDict
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from effbench.core.errors import ConfigError, suggest
from effbench.core.printable import describe
from effbench.core.python_files import FILE, module_of
from effbench.models.catalog import LIBRARIES
from effbench.models.inputs import Step

KEY = "_target_"
#: Device of the module that is being built, for constructors that draw many weights.
DEVICE: ContextVar[torch.device | str] = ContextVar("device", default="cpu")
#: Classes of the standard library that a configuration may use, because they only contain values.
PLAIN = (SimpleNamespace, OrderedDict)


def set_seed(seed: int) -> None:
    """Seed torch, Python's `random` and numpy: a module may draw its weights from any of them."""
    torch.manual_seed(seed)
    random.seed(seed % 2**64)  # Python would ignore the sign
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
) -> nn.Module:
    """Return the module in eval mode on `device`, with floating-point weights and buffers in
    `dtype`.

    `module` holds `_target_` and the constructor's keyword arguments; arguments that are mappings
    with a `_target_` are built first. Weights are drawn on the CPU, so that they depend only on the
    seed and not on the device, unless the constructor uses DEVICE. Raises ConfigError for an
    invalid target, and any exception of the constructor.
    """
    target = module.get(KEY)
    if target in (None, "", "???"):
        raise ConfigError(
            f"model.module.{KEY} is missing; give an import path (my_pkg.Net) or a file and a name"
            " (path/net.py:Net)"
        )
    make = resolve_model(str(target))
    set_seed(seed)
    token = DEVICE.set(device)
    try:
        built = make(**_arguments(module))
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
        # an exported program stays in the mode of its export
        if not isinstance(built, torch.fx.GraphModule):
            raise

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)

    # as Module.to, which would also cast complex weights and so drop their imaginary parts
    return built._apply(cast)


def declared_inputs(module: nn.Module) -> Mapping[str, Any]:
    """Return the inputs that the module describes itself, for `model.inputs=null`. Raises
    ConfigError."""
    inputs = getattr(module, "inputs", None)
    if not isinstance(inputs, Mapping):
        raise ConfigError(
            f"model.inputs is null, but {type(module).__name__} has no attribute inputs, a mapping"
            " such as {x: {shape: [16]}}"
        )
    return inputs


def resolve_target(target: str, setting: str = KEY) -> Step:
    """Return the callable named by `target`: `package.module.Name`, or `path/to/file.py:Name` (a
    relative path). `setting`: what names it in a configuration.

    Raises ConfigError if a part of it cannot be found or imported, and for Python's standard
    library: a configuration that names `os.system` is a mistake or an attack.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    title = f"{setting}={target}"
    find = _from_path
    if ":" in target or target.endswith(".py"):
        find = _from_file
    try:
        named: Any = find(target, title)
    except ConfigError:
        raise
    except Exception as error:  # the user's file may raise anything when it is imported
        raise ConfigError(f"{title}{_not_imported(target, error)}") from error
    if not callable(named):
        raise ConfigError(
            f"{title} is of type {type(named).__name__}, not callable; name a class or a function"
        )
    home = _home(named)
    is_standard = home.partition(".")[0] in sys.stdlib_module_names
    # a user's file may have the name of a standard module, such as code.py
    if is_standard and named not in PLAIN and not _is_module_class(named):
        raise ConfigError(
            f"{title} is part of Python ({home}); allowed: your own code or that of an installed"
            " package"
        )
    function: Step = named
    return function


def resolve_model(target: str) -> Step:
    """Return the `torch.nn.Module` class, function or method named by `target`.

    Raises ConfigError as `resolve_target` does, and for other classes and objects, which only a
    call could verify.
    """
    named = resolve_target(target)
    is_function = isinstance(inspect.unwrap(named), FunctionType | MethodType)
    if _is_module_class(named) or is_function:
        return named
    what = "a class" if isinstance(named, type) else f"of type {type(named).__name__}"
    raise ConfigError(
        f"{KEY}={target} is {what}; allowed: a torch.nn.Module class, or a function that returns a"
        " module"
    )


def _is_module_class(named: Any) -> bool:
    return isinstance(named, type) and issubclass(named, nn.Module)


def _home(function: Any) -> str:
    """Return the name of the module that defines a callable, even if it was imported from
    elsewhere."""
    while isinstance(function, functools.partial):
        function = function.func
    home = getattr(function, "__module__", None)
    if home is None:  # a method written in C: use the module of its object or class
        kind = type(getattr(function, "__self__", None))
        home = getattr(function, "__objclass__", kind).__module__
    return str(home)


def _arguments(node: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _instantiate(value) for key, value in node.items() if key != KEY}


def _instantiate(node: Any) -> Any:
    """Return plain values unchanged. For a mapping with a `_target_`, call the target with the
    other keys."""
    if isinstance(node, Mapping):
        arguments = _arguments(node)
        if KEY not in node:
            return arguments
        return resolve_target(str(node[KEY]))(**arguments)
    if isinstance(node, list | tuple):
        return [_instantiate(value) for value in node]
    return node


def _from_path(target: str, title: str) -> Any:
    names = target.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(
            f"{title} is not an import path; allowed: my_pkg.Net or path/to/file.py:Net"
        )
    value: Any = importlib.import_module(names[0])
    for name in names[1:]:
        if hasattr(value, "__path__") and not hasattr(value, name):
            submodule = f"{value.__name__}.{name}"
            if importlib.util.find_spec(submodule):
                importlib.import_module(submodule)
        value = _attribute(title, value, name)
    return value


def _from_file(target: str, title: str) -> Any:
    file, _, name = target.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(
            f"{title} is not a file and a name; allowed: path/to/file.py:Net or my_pkg.Net"
        )
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{title}: no file {file} in the working directory {Path.cwd()}")
    value: Any = module_of(path)
    for part in name.split("."):
        value = _attribute(title, value, part)
    return value


def _not_imported(target: str, error: Exception) -> str:
    """Return why importing failed, as a text to append to the target."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return f": importing it raised {describe(error)}"
    package = error.name.partition(".")[0]
    if package in LIBRARIES:
        return f' needs {package}, which is not installed; fix: pip install "effbench[models]"'
    if target.startswith(error.name):
        return f": no module named {error.name} in the working directory or the environment"
    return f": it imports {error.name}, which is not installed"


def _attribute(title: str, owner: Any, name: str) -> Any:
    if hasattr(owner, name):
        return getattr(owner, name)
    where = getattr(owner, "__name__", type(owner).__name__)
    if where.startswith(FILE):
        where = Path(owner.__file__).name
    public = [key for key in dir(owner) if not key.startswith("_")]
    raise ConfigError(
        f"{title}: {where} has no {name}{suggest(name, public, cutoff=0.6, before='; ')}"
    )

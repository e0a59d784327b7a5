"""Build a model from its YAML: find the `_target_`, seed, construct, move."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn

from effbench.errors import ConfigError, nearest

KEY = "_target_"
#: Packages that come with the extra `models`.
EXTRA = frozenset({"torchvision", "transformers"})
#: Classes of the standard library that a configuration may need: they only hold values.
PLAIN = (SimpleNamespace, OrderedDict)


def build_module(module: Mapping[str, Any], dtype: torch.dtype, device: torch.device | str, seed: int) -> nn.Module:
    """Return the module in eval mode, its floating-point weights and buffers in `dtype`, on `device`.

    `module` holds `_target_` and the constructor's keyword arguments; mappings among those that have a `_target_` are
    built first. Weights are drawn on the CPU, so that a seed gives the same ones for every device. What the constructor
    raises passes through. Raises ConfigError for a target that `resolve_model` or `resolve_target` refuses.
    """
    if module.get(KEY) in (None, "", "???"):
        raise ConfigError(
            f"model.module.{KEY} is missing; give an import path (my_pkg.Net) or a file (path/net.py:Net)"
        )
    resolve_model(str(module[KEY]))
    torch.manual_seed(seed)
    built = _instantiate(module)
    if not isinstance(built, nn.Module):
        kind = type(built).__name__
        raise ConfigError(f"model.module.{KEY}={module[KEY]} returned a {kind}; allowed: what gives a torch.nn.Module")
    return built.to(device=device, dtype=dtype).eval()


def resolve_target(target: str) -> Callable[..., Any]:
    """Return what `target` names: `package.module.Name`, or `path/to/file.py:Name` relative to the working directory.

    Raises ConfigError that says which part cannot be found or imported. What Python itself ships is refused: a
    configuration that names `os.system` is a mistake or an attack.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found = _from_file(target) if ":" in target or target.endswith(".py") else _from_path(target)
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's own file raises when it is imported
        raise ConfigError(f"{KEY}={target}{_not_imported(target, error)}") from error
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(f"{KEY}={target} is a {kind}, not callable; allowed: a torch.nn.Module class or a factory")
    home = _home(found)
    is_module = isinstance(found, type) and issubclass(found, nn.Module)  # in a user's own code.py, for example
    if home.partition(".")[0] in sys.stdlib_module_names and not is_module and found not in PLAIN:
        allowed = "your own code or that of an installed package"
        raise ConfigError(f"{KEY}={target} comes with Python ({home}); allowed: {allowed}")
    return found


def resolve_model(target: str) -> Callable[..., Any]:
    """Return what `target` names, if it is a `torch.nn.Module` class, a function or a method.

    Raises ConfigError as `resolve_target` does, and for any other class or object: only calling it would show that it
    makes no module.
    """
    found = resolve_target(target)
    is_class = isinstance(found, type)
    if issubclass(found, nn.Module) if is_class else isinstance(inspect.unwrap(found), FunctionType | MethodType):
        return found
    what = "a class" if is_class else f"a {type(found).__name__}"
    allowed = "a torch.nn.Module class, or a function that returns a module"
    raise ConfigError(f"{KEY}={target} is {what}; allowed: {allowed}")


def _home(found: Any) -> str:
    """Return the module that a callable comes from, whatever attribute it was reached by."""
    while isinstance(found, functools.partial):
        found = found.func
    home = getattr(found, "__module__", None)
    if home is None:  # a method written in C: that of its object or class
        home = getattr(found, "__objclass__", type(getattr(found, "__self__", None))).__module__
    return str(home)


def _instantiate(node: Any) -> Any:
    """Return plain values as they are; for mappings with a `_target_`, what it makes from the other keys."""
    if isinstance(node, Mapping):
        values = {key: _instantiate(value) for key, value in node.items() if key != KEY}
        return resolve_target(str(node[KEY]))(**values) if KEY in node else values
    if isinstance(node, list | tuple):
        return [_instantiate(value) for value in node]
    return node


def _from_path(target: str) -> Any:
    names = target.split(".")
    if len(names) < 2 or not all(name.isidentifier() for name in names):
        raise ConfigError(f"{KEY}={target} is not an import path; allowed: my_pkg.Net or path/to/file.py:Net")
    found: Any = importlib.import_module(names[0])
    for name in names[1:]:
        if (
            not hasattr(found, name)
            and hasattr(found, "__path__")
            and importlib.util.find_spec(f"{found.__name__}.{name}")
        ):
            importlib.import_module(f"{found.__name__}.{name}")
        found = _attribute(target, found, name)
    return found


def _from_file(target: str) -> Any:
    file, _, name = target.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{KEY}={target}: expected a file and a name; allowed: path/to/file.py:Net or my_pkg.Net")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{KEY}={target}: no file {file} below the working directory {Path.cwd()}")
    return functools.reduce(functools.partial(_attribute, target), name.split("."), _load(path))


def _load(path: Path) -> ModuleType:
    """Run a file as a module, once a process; it may import the files next to it."""
    name = f"effbench_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _not_imported(target: str, error: Exception) -> str:
    """Say why importing failed, to be appended to the target."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        first = (str(error).strip() or "no message").splitlines()[0]
        return f": importing it raised {type(error).__name__}: {first}"
    package = error.name.partition(".")[0]
    if package in EXTRA:
        return f' needs {package}, which is not installed; fix: pip install "effbench[models]"'
    if target.startswith(error.name):
        return f": no module named {error.name} in the working directory or the environment"
    return f": it imports {error.name}, which is not installed"


def _attribute(target: str, found: Any, name: str) -> Any:
    if hasattr(found, name):
        return getattr(found, name)
    public = [key for key in dir(found) if not key.startswith("_")]
    near = nearest(name, public)
    hint = f"did you mean {near}?" if near else f"it has: {', '.join(public[:8]) or 'nothing public'}"
    raise ConfigError(f"{KEY}={target}: {getattr(found, '__name__', type(found).__name__)} has no {name}; {hint}")

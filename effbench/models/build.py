"""From a model's YAML to its module: find the `_target_`, seed, construct, move."""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

    Raises `ConfigError` that says which part cannot be found or imported, and for what Python itself ships: a
    configuration that names `os.system` is a mistake or an attack.
    """
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    is_file = ":" in target or target.endswith(".py")
    found = _from_file(target) if is_file else _from_path(target)
    if not callable(found):
        kind = type(found).__name__
        raise ConfigError(f"{_named(target)} is a {kind}, not callable; allowed: a torch.nn.Module class or a factory")
    home = _home(found)
    is_module = isinstance(found, type) and issubclass(found, nn.Module)  # in a code.py of the user's, say
    if home.partition(".")[0] in sys.stdlib_module_names and not is_module and found not in PLAIN:
        allowed = "your own code or that of an installed package"
        raise ConfigError(f"{_named(target)} comes with Python ({home}); allowed: {allowed}")
    return found


def resolve_model(target: str) -> Callable[..., Any]:
    """Return what `target` names, if it is a `torch.nn.Module` class, a function or a method.

    Raises `ConfigError` as `resolve_target` does, and for any other class or object: it would be called to find out
    that it makes no module.
    """
    found = resolve_target(target)
    if isinstance(found, type):
        fits = issubclass(found, nn.Module)
    else:
        fits = isinstance(inspect.unwrap(found), FunctionType | MethodType)
    if not fits:
        what = "a class" if isinstance(found, type) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{_named(target)} is {what}; allowed: a torch.nn.Module class, or a function that returns a module"
        )
    return found


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


def _named(target: str) -> str:
    return f"{KEY}={target}"


def _from_path(target: str) -> Any:
    first, *names = target.split(".")
    if not all(part.isidentifier() for part in (first, *names)):
        raise ConfigError(f"{_named(target)} is no import path; allowed: my_pkg.Net or path/to/file.py:Net")
    if not names:
        raise ConfigError(f"{_named(target)} names no module; allowed: my_pkg.Net or path/to/file.py:Net")
    with _importing(target, first):
        module = importlib.import_module(first)
    return _attribute(target, module, first, names, submodules=True)


def _from_file(target: str) -> Any:
    file, _, name = target.rpartition(":")
    if not file.endswith(".py") or not name:
        raise ConfigError(f"{_named(target)} is no file and name; allowed: path/to/file.py:Net or my_pkg.Net")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"{_named(target)}: no file {file} below the working directory {Path.cwd()}")
    return _attribute(target, _load(target, path), file, name.split("."), submodules=False)


def _attribute(target: str, found: Any, where: str, names: Sequence[str], submodules: bool) -> Any:
    """Return the attribute of an attribute …; `submodules`: import those that nobody has imported yet."""
    for name in names:
        with _importing(target, where):  # reading an attribute may import (packages that load lazily)
            exists = hasattr(found, name)
        if not exists:
            inner = f"{where}.{name}"
            with _importing(target, inner):
                is_package = submodules and isinstance(found, ModuleType) and hasattr(found, "__path__")
                submodule = importlib.import_module(inner) if is_package and importlib.util.find_spec(inner) else None
            if submodule is None:
                raise _no_attribute(target, found, where, name)
        found, where = getattr(found, name), f"{where}.{name}"
    return found


def _load(target: str, path: Path) -> ModuleType:
    """Run a file as a module, once a process; it may import the files next to it."""
    name = f"effbench_file_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{_named(target)}: {path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _not_imported(target, str(path), error) from error
    return module


@contextmanager
def _importing(target: str, name: str) -> Iterator[None]:
    """Raise ConfigError for whatever an import raises."""
    try:
        yield
    except Exception as error:
        raise _not_imported(target, name, error) from error


def _not_imported(target: str, name: str, error: Exception) -> ConfigError:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        first = (str(error).strip() or "no message").splitlines()[0]
        return ConfigError(f"{_named(target)}: importing {name} raised {type(error).__name__}: {first}")
    missing = error.name
    if missing.partition(".")[0] in EXTRA:
        package = missing.partition(".")[0]
        return ConfigError(f'{_named(target)} needs {package}, not installed; fix: pip install "effbench[models]"')
    if missing == name:
        return ConfigError(f"{_named(target)}: no module named {missing} in the working directory or the environment")
    return ConfigError(f"{_named(target)}: {name} imports {missing}, which is not installed")


def _no_attribute(target: str, found: Any, where: str, name: str) -> ConfigError:
    public = [key for key in dir(found) if not key.startswith("_")]
    near = nearest(name, public)
    hint = f"did you mean {near}?" if near else f"it has: {', '.join(public[:8]) or 'nothing public'}"
    return ConfigError(f"{_named(target)}: {where} has no {name}; {hint}")

"""Import Python files by their path."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

#: Start of the names of modules that are files.
FILE = "effbench_file_"


def module_of(path: Path) -> ModuleType:
    """Return the module of a file, which is run once per process and may import the files next to
    it. Raises what the file raises."""
    path = path.resolve()
    digest = hashlib.sha256(str(path).encode()).hexdigest()
    name = f"{FILE}{path.stem}_{digest[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module

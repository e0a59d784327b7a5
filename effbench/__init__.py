"""effbench: benchmark matrices of PyTorch models, isolated, recorded, compared.

effbench.sweep(["model=mlp", "bs=1,8", "mode=eager,cuda-graph"]) -> Sweep
effbench.results(db="results/effbench.db", sweep="last") -> DataFrame, the view `results`
effbench.compare("main", "last") -> DataFrame, a verdict for each cell and metric
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_ERRORS = (
    "EffbenchError",
    "UsageError",
    "ConfigError",
    "InterpreterError",
    "ResumeError",
    "StoreError",
    "SchemaError",
    "WorkerError",
    "UnsupportedError",
    "NothingFoundError",
)
#: Public name -> its module.
_PUBLIC = {
    **dict.fromkeys(("sweep", "results", "compare", "Sweep"), "effbench.api"),
    **dict.fromkeys(("Cell", "Environment", "Status", "Trial"), "effbench.core.cell"),
    **dict.fromkeys(_ERRORS, "effbench.core.errors"),
}
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load what is asked for: `import effbench` costs nothing."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'effbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return also what is not loaded yet: notebooks complete these names."""
    return [*globals(), *_PUBLIC]

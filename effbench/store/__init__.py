"""The results database. `Store` is its Python interface, the view `results` its SQL interface."""

from effbench.store.schema import HEAD_REVISION, RESULT_COLUMNS
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

__all__ = ["HEAD_REVISION", "RESULT_COLUMNS", "Store", "SweepInfo"]

"""The results database. `Store` is its interface; the view `results` is the public one for SQL."""

from effbench.store.schema import HEAD_REVISION, RESULT_COLUMNS
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

__all__ = ["HEAD_REVISION", "RESULT_COLUMNS", "Store", "SweepInfo"]

"""The results database. `Store` is its Python interface, the view `results` its SQL interface.

| module | answers |
|---|---|
| store | which queries are there? |
| connect, schema, maintenance | how is a database opened, made and upgraded? |
| sweeps, trials | how are sweeps and trials recorded and read? |
| summary | which trials of a cell count, and what result, speedup and interval do they give? |
| sides | which figures does a comparison of sweeps have? |
| transfer, source, joining | how do sweeps come from other databases and hosts? |
| decisions | which baselines and verdicts are kept? |

Trials become `StoredTrial`, the `CountedTrials` of a cell, a `Summary`, and `Result`, a row of the
view. The arithmetic of means and intervals is in stats/intervals.py.
"""

from effbench.store.schema import HEAD_REVISION, RESULT_COLUMNS
from effbench.store.store import Store
from effbench.store.sweeps import SweepInfo

__all__ = ["HEAD_REVISION", "RESULT_COLUMNS", "Store", "SweepInfo"]

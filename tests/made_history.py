"""Histories for tests: sweeps, environments and rows of results, without a database."""

import datetime as dt
from types import SimpleNamespace

import numpy as np
from made_sweeps import a_cell, environment

from effbench.analysis.history import DEFAULT_METRICS, columns_of, judged
from effbench.analysis.limits import read as read_limits
from effbench.core.cell import StoredEnvironment
from effbench.store.sides import PastResults

GPU = "NVIDIA H200"
JUDGED = (*DEFAULT_METRICS, "graph_pool_bytes", "rel_error", "speedup", "period_speedup")
COLUMNS = dict.fromkeys(("status", "reason", *columns_of(JUDGED)))


class Made:
    """A history in the making: sweeps, environments and rows are added one by one."""

    def __init__(self):
        self.sweeps, self.environments, self.cells, self.rows = [], {}, {}, []
        self.environment()

    def environment(self, key="a", **changed):
        facts = {"driver_version": "570", "torch_version": "2.11", **changed}
        self.environments[key] = StoredEnvironment(**vars(environment(**facts)), id=key)

    def sweep(self, **changed):
        number = len(self.sweeps)
        facts = {
            "id": f"s{number:03}",
            "name": None,
            "label": f"v{number}",
            "protocol": {"rounds": 5},
            "host": {},
            "started_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(number),
        }
        self.sweeps.append(SimpleNamespace(**facts | changed))
        return self

    def result(self, mode="eager", environment="a", model="mlp", **values):
        """A result in the newest sweep."""
        cell = a_cell(model=model, bs=1, dtype="float32", mode=mode)
        self.cells[cell.key] = cell
        ids = {
            "sweep_id": self.sweeps[-1].id,
            "cell_key": cell.key,
            "environment_id": environment,
        }
        self.rows.append(COLUMNS | ids | {"status": "ok", "trials": 5} | values)
        return self

    def judge(self, *metrics, limits=None):
        past = PastResults([], self.environments, self.cells, self.rows)
        limits = limits or read_limits()
        return judged(self.sweeps, past, list(metrics or DEFAULT_METRICS), limits)


def series(**figures):
    """A cell with these figures, one a sweep; None: no result there."""
    made = Made()
    for values in zip(*figures.values(), strict=True):
        made.sweep()
        if None not in values:
            made.result(**dict(zip(figures, values, strict=True)))
    return made


def latencies(values):
    return series(latency_ms=values)


def noisy(count, level=1.0, seed=0):
    return list(level * np.exp(np.random.default_rng(seed).normal(0, 0.005, count)))


STEP = noisy(15) + noisy(15, 1.1, seed=1)

"""Histories as the store reads them, made up."""

from __future__ import annotations

import datetime as dt

import numpy as np

from effbench.comparison.history import DEFAULT_METRICS, columns_of, history
from effbench.store.sides import Series

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GPU = "NVIDIA H200"
COLUMNS = ("sweep_id", "cell_key", "environment_id", "status", "reason", *dict.fromkeys(columns_of(DEFAULT_METRICS)))


class Made:
    """A history in the making: sweeps, environments and rows are added one by one."""

    def __init__(self):
        self.sweeps, self.environments, self.cells, self.rows = [], {}, {}, []
        self.environment()

    def environment(self, key="a", **changed):
        facts = {"gpu_name": GPU, "gpu_memory_bytes": 1, "driver_version": "570", "cuda_version": "12.8",
                 "torch_version": "2.11", "triton_version": "3", "python": "3.12", "cpu_name": "Xeon",
                 "platform": "Linux", "flags": {}}  # fmt: skip
        self.environments[key] = {"id": key, **facts, **changed}

    def sweep(self, **changed):
        number = len(self.sweeps)
        started = START + dt.timedelta(days=number)
        facts = {"id": f"s{number:03}", "name": None, "label": f"v{number}", "started_at": started, "state": "x",
                 "protocol": {"name": "standard", "rounds": 5}, "host": {"hostname": "node"}}  # fmt: skip
        self.sweeps.append({**facts, **changed})
        return self

    def result(self, cell="c", environment="a", status="ok", model="mlp", **values):
        """A result in the newest sweep."""
        self.cells.setdefault(cell, {"key": cell, "model": model, "bs": 1, "mode": "eager"})
        row = {"sweep_id": self.sweeps[-1]["id"], "cell_key": cell, "environment_id": environment, "status": status,
               "trials": 5, **values}  # fmt: skip
        self.rows.append(tuple(row.get(name) for name in COLUMNS))
        return self

    def series(self):
        measured = [(row[0], row[2], self.cells[row[1]]["model"]) for row in self.rows]
        return Series(self.sweeps, self.environments, self.cells, COLUMNS, self.rows, measured)

    def judge(self, *metrics, acknowledged=(), exceptions=()):
        return history(self.series(), metrics or DEFAULT_METRICS, acknowledged, exceptions)


def latencies(values, **more):
    """A cell with these latencies, one a sweep; None: no result there."""
    made = Made()
    for value in values:
        made.sweep()
        if value is not None:
            made.result(latency_ms=value, **more)
    return made


def noisy(count, level=1.0, seed=0):
    return list(level * np.exp(np.random.default_rng(seed).normal(0, 0.005, count)))

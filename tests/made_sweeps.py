"""Sweeps made up for comparing: cells with given figures in a real database, as one GPU's sweeps
would fill it.

A figure is one value for all rounds or a list with one a round; without a spread of its own it gets
none.
"""

import atexit
import datetime as dt
import functools
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from effbench.core.cell import Cell, Environment, Result, Status, Trial
from effbench.core.trace import Kernel, Trace
from effbench.store import Store
from effbench.store.schema import TRACE, TRIAL
from effbench.store.values import TRACE_CODEC, result_of, trial_row

MIB = 2**20
H200 = "NVIDIA H200"
#: What a GPU-bound cell is recorded with where nothing else is said.
FIGURES: dict[str, Any] = {
    "latency_ms": 1.0,
    "period_ms": 0.96,
    "gpu_busy_ms": 0.95,
    "energy_mj": 50.0,
    "kernels": 12,
    "peak_allocated_bytes": 100 * MIB,
    "peak_reserved_bytes": 120 * MIB,
    "rel_error": 1e-3,
    "graph_breaks": 0,
    "recompiles": 0,
    "cudagraph_skips": 0,
    "first_call_s": 0.5,
}
_FACTS: dict[str, Any] = {
    "gpu_name": H200,
    "gpu_memory_bytes": 150_000_000_000,
    "driver_version": "570.1",
    "cuda_version": "12.8",
    "torch_version": "2.13.0",
    "triton_version": "3.5",
    "python": "3.12.4",
    "cpu_name": "Xeon",
    "platform": "Linux",
}


def environment(**changed: Any) -> Environment:
    return Environment(**{**_FACTS, **changed})


def a_result(**fields: Any) -> Result:
    """A result with these fields; the others are simple or unknown."""
    simple = {
        "sweep_name": None,
        "label": None,
        "started_at": dt.datetime(2026, 3, 1, tzinfo=dt.UTC),
        "model": "mlp",
        "bs": 1,
        "mode": "eager",
        "dtype": "float32",
        "phase": "inference",
        "device": "cpu",
        "params": {},
        "cell_key": "",
        "status": "ok",
        "reason": None,
        "trials": 5,
        "is_baseline": fields.get("mode", "eager") == "eager",
    }
    return result_of(simple | fields)


def a_cell(
    mode: str = "eager", model: str = "mlp", bs: int = 8, dtype: str = "bfloat16", **more: Any
) -> Cell:
    settings = more.pop("settings", {})
    fields = {
        "phase": "inference",
        "device": "cuda",
        "numerics": {"tf32": False},
        **more,
    }
    return Cell({"name": model}, bs, {"name": mode, **settings}, dtype, **fields)


def spread(value: float, relative: float, rounds: int = 5, seed: int = 0) -> list[float]:
    """`rounds` figures about `value`, normal with this relative standard deviation."""
    draw = random.Random(seed)
    return [value * (1 + draw.gauss(0, relative)) for _ in range(rounds)]


def steps(value: float, relative: float) -> list[float]:
    """Five figures whose geometric mean is `value`; their logarithms lie -2, -1, 0, 1, 2 times
    `relative` beside it."""
    return [value * (1 + relative) ** step for step in (-2, -1, 0, 1, 2)]


A100 = environment(gpu_name="NVIDIA A100")
EAGER, DEFAULT, GRAPH = (a_cell(mode) for mode in ("eager", "default", "cuda-graph"))
#: Latencies of five rounds, and 10 % above them.
FAST, SLOW = ({"latency_ms": steps(value, 0.001)} for value in (1.0, 1.1))


def trials_of(cell: Cell, figures: Mapping[str, Any], rounds: int = 5) -> list[Trial]:
    """`figures`: fields of `Trial` over those of FIGURES; `statuses`: of each round, as (status,
    reason)."""
    values = {**FIGURES, **figures}
    statuses = values.pop("statuses", None)
    status, reason = values.pop("status", Status.OK), values.pop("reason", None)
    found = []
    for number in range(rounds):
        own = {
            key: (
                value[number]
                if isinstance(value, Sequence) and not isinstance(value, str)
                else value
            )
            for key, value in values.items()
        }
        kind, why = statuses[number] if statuses else (status, reason)
        if not Status(kind).is_measured:
            own = {}
        found.append(Trial(cell.key, number, Status(kind), why, **own))
    return found


def begun(store: Store, plan: list[Cell], **changed: Any) -> str:
    """A sweep without a trial."""
    facts = {
        "name": None,
        "label": None,
        "command": [],
        "overrides": [],
        "protocol": {"name": "standard", "rounds": 5},
        "baseline_mode": "eager",
        "seed": 0,
        "git_revision": None,
        "host": {},
        "plan": plan,
        "rounds": 1,
    }
    return store.begin_sweep(**{**facts, **changed})


class Made:
    """A database at `path` with sweeps in it."""

    def __init__(self, path: Path | str) -> None:
        self.path = path

    def sweep(
        self,
        cells: Mapping[Cell, Mapping[str, Any] | None] | Sequence[Cell],
        *,
        env: Environment | None = None,
        rounds: int = 5,
        state: str = "completed",
        into: str | None = None,
        **facts: Any,
    ) -> str:
        """Record a sweep of these cells and return its id. A cell with None is planned and not
        measured. `into`: an earlier sweep, which ran in another environment, too."""
        cells = cells if isinstance(cells, Mapping) else {cell: {} for cell in cells}
        env = env or environment()
        with Store.open(self.path, mode="write") as store:
            sweep_id = into or begun(store, list(cells), rounds=rounds, **facts)
            environment_id = store.add_environment(env, {})
            rows = [
                {**trial_row(trial), "sweep_id": sweep_id, "environment_id": environment_id}
                for cell, figures in cells.items()
                if figures is not None
                for trial in trials_of(cell, figures, rounds)
            ]
            with store.writing() as connection:  # one transaction: a trial each takes a while
                if rows:
                    connection.execute(sa.insert(TRIAL), rows)
            store.rebuild_results(sweep_id)
            store.finish_sweep(sweep_id, state)
        return sweep_id

    def trace(self, sweep_id: str, cell: Cell, kernels: Sequence[Kernel]) -> None:
        """Give each measured trial of a cell a trace of these kernels; the rest of its latency is
        host time before them."""
        busy_ms = sum(kernel.added_ms for kernel in kernels)
        query = sa.select(TRIAL.c["id", "latency_ms"])
        query = query.filter_by(sweep_id=sweep_id, cell_key=cell.key)
        query = query.where(TRIAL.c.latency_ms.is_not(None))
        with Store.open(self.path, mode="write") as store, store.writing() as connection:
            for trial in connection.execute(query).all():
                times = trial.latency_ms, trial.latency_ms - busy_ms, 0.0
                trace = Trace("cuda", 10, *times, 3 * len(kernels), tuple(kernels), {})
                row = {"trial_id": trial.id, "codec": TRACE_CODEC, "data": trace.packed()}
                connection.execute(sa.insert(TRACE), row)

    def sql(self, statement: str) -> None:
        sql(self.path, statement)

    def delete_sweep(self, sweep_id: str) -> None:
        tables = ("result", "trial", "sweep_cell")
        sql(self.path, *(f"DELETE FROM {table} WHERE sweep_id = '{sweep_id}'" for table in tables))
        sql(self.path, f"DELETE FROM sweep WHERE id = '{sweep_id}'")


def loosen(path: Any) -> None:
    """Let the columns of a database file take any value, as another program's would."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        for name, text in rows.fetchall():
            loose = re.sub(r",\s*CONSTRAINT ck_\w+ CHECK \([^()]*(\([^()]*\)[^()]*)*\)", "", text)
            loose = loose.replace(" NOT NULL", "").removesuffix(" STRICT").rstrip()
            loose = loose.removesuffix("STRICT")
            values = (loose, name)
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", values)
        connection.commit()
        connection.execute("PRAGMA journal_mode = DELETE")


def faults(path: Any) -> list[Any]:
    """Return what SQLite finds wrong with a file; a server guarantees its constraints."""
    if "://" in str(path):
        return []
    with closing(sqlite3.connect(path)) as connection:
        damage = connection.execute("PRAGMA integrity_check").fetchall()
        broken = connection.execute("PRAGMA foreign_key_check").fetchall()
    return [row for row in damage if row != ("ok",)] + broken


def sql(path: Any, *statements: str, rows: int | None = None) -> None:
    """Do what only someone with a database browser does. `rows`: how many a statement must
    change."""
    is_file = "://" not in str(path)
    if is_file:
        connect = sqlite3.connect
    else:
        from psycopg import connect  # here, so that other tests run without it
    with closing(connect(path)) as connection:
        connection.execute(
            "PRAGMA foreign_keys = OFF" if is_file else "SET session_replication_role = replica"
        )
        for statement in statements:
            count = connection.execute(statement).rowcount
            assert rows in (None, count), statement
        connection.commit()


WRITER = """
import sys
from effbench.core.cell import Status, Trial
from effbench.store import Store

url, sweep, here, modes, first, last = sys.argv[1:]
with Store.open(url, mode="write") as store:
    cells = [cell for cell in store.planned(sweep) if cell.mode_name in modes.split(",")]
    for number in range(int(first), int(last)):
        for cell in cells:
            latency = 4.0 if cell.mode_name == "eager" else 1.0
            samples = {"latency_ms": [latency] * 500}
            trial = Trial(cell.key, number, Status.OK, latency_ms=latency, samples=samples)
            store.add_trial(sweep, here, trial)
"""


def writer(
    db: Any, sweep: str, here: str, rounds: range, modes: str = "eager"
) -> subprocess.Popen[str]:
    """A process that records rounds of the cells with these modes, of which eager takes four times
    as long."""
    words = map(str, (db, sweep, here, modes, rounds.start, rounds.stop))
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *words], stderr=subprocess.PIPE, text=True
    )


def assert_ended_well(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, ""), errors


@functools.cache
def template() -> Path:
    """A database with a schema and nothing in it, which takes longer to make than to copy."""
    folder = Path(tempfile.mkdtemp(prefix="effbench-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "empty.db"
    Store.open(path, mode="write").close()
    return path


def copied(empty: Path, path: Path) -> Made:
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(empty, path)
    return Made(path)

"""A database with all that a sweep can have, values included that are hard to carry; and all that a
database holds."""

import datetime as dt
import math
import random
from typing import Any

import made_sweeps
import sqlalchemy as sa
from made_sweeps import begun

from effbench.core.cell import Cell, Environment, Status, Trial, encodable
from effbench.core.metrics import TRIAL_METRICS
from effbench.core.trace import Kernel, Trace
from effbench.store import Store
from effbench.store.schema import BASELINE, METADATA, SWEEP
from effbench.store.source import opened
from effbench.store.sweeps import SweepInfo
from effbench.store.transfer import copy, write_file
from effbench.store.values import result_row

ODD_TEXT = (
    "<img src=x onerror=alert(1)>",
    'it\'s "quoted", {a: [1]}; DROP TABLE trial; -- 100%',
    "two\nlines\r\n\tand a tab, \u2028 too",
    "größe 型号 🚀 e\u0301",
    "nul \x00 and half \ud800 of a pair",
    "",
)
KEYS = ("sweep_id", "cell_key", "environment_id", "round", "attempt")
ODD_SAMPLES = [1.0, math.nan, math.inf, -math.inf, None, -0.0, 5e-324, 1e308, 3]
ODD_VALUES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (0, 1, 2**53 + 1, 2**62, 2**63 - 1, 2**70),
    float: (0.3, 1.0, 2.7),
    str: ODD_TEXT,
}
#: a column each; derived figures are made of the others
EXTREME = {
    "power_w": 1.7e308,
    "energy_mj": 5e-324,
    "rel_error": -0.0,
    "overhead_s": math.nan,
    "wall_s": math.inf,
}
HARDWARE = "NVIDIA <b>H200</b> 型"


def cells(count: int = 6) -> list[Cell]:
    """Half of them eager, which the others are compared with."""
    return [
        Cell(
            {
                "name": ODD_TEXT[i // 2 % 4],
                "module": {"_target_": "x.Y", "width": 2**80, "scale": 0.1 + i // 2},
            },
            i // 2 + 1,
            {"name": "eager" if i % 2 == 0 else ODD_TEXT[1]},
            "float32",
            "inference",
            "cpu",
            env={"A": ODD_TEXT[0]},
        )
        for i in range(count)
    ]


def environment(**changed: Any) -> Environment:
    odd = {
        "gpu_name": HARDWARE,
        "driver_version": None,
        "cpu_name": ODD_TEXT[1],
        "flags": {"x": "é"},
    }
    return made_sweeps.environment(**{**odd, **changed})


def odd_trace(latency_ms: float) -> dict[str, Any]:
    """What a trial records as its trace, with texts that are hard to carry."""
    odd = list(map(encodable, ODD_TEXT))
    kernels = [Kernel(text, odd[0], None, 0.1, 0.1, 0.0) for text in odd]
    kernels.append(Kernel("gemm", "", odd[1], 0.2, 0.1, 0.3))
    trace = Trace("cuda", 9, latency_ms, 0.1, 0.2, 40, tuple(kernels), {odd[2]: 0.1})
    return trace.to_json()


def odd_trial(cell: Cell, turn: int, attempt: int, noise: random.Random) -> Trial:
    """Every column has something or nothing, by chance."""
    values: dict[str, Any] = {"phase": ODD_TEXT[1], "reason": noise.choice(ODD_TEXT)}
    for metric in TRIAL_METRICS:
        # hosts belong to joined sweeps
        if metric.name != "host" and noise.random() >= 0.3:
            values[metric.name] = noise.choice(ODD_VALUES[metric.kind])
    return Trial(
        cell.key,
        turn,
        noise.choice([*Status, Status.OK, Status.OK]),
        attempt=attempt,
        started_at=noise.choice([None, "2026-11-21T12:00:00.123456+05:30", "2026-11-21T12:00:00"]),
        samples={
            name: [noise.choice(ODD_SAMPLES) for _ in range(20)]
            for name in ("latency_ms", ODD_TEXT[3])
        },
        extra={
            "nan": math.nan,
            "huge": -(2**90),
            ODD_TEXT[0]: [ODD_TEXT, {"": None}, 1.0, 1, True],
            "1": 1e-320,
        },
        trace=odd_trace(turn + 1.5) if attempt == 0 else None,
        **values | EXTREME,
    )


def sweep(
    store: Store, name: str | None = None, seed: int = 0, rounds: int = 2, **changed: Any
) -> str:
    """A completed sweep in two environments, some rounds tried again."""
    noise = random.Random(seed)
    overrides = ["bs=1", *ODD_TEXT]
    facts = {
        "label": ODD_TEXT[2],
        "command": ["-m", *ODD_TEXT],
        "overrides": overrides,
        "protocol": {"name": "quick", "limit": math.inf},
        "seed": 2**40 + seed,
        "host": {"hostname": ODD_TEXT[1]},
        "cell_overrides": {cells()[0].key: overrides},
        **changed,
    }
    sweep_id = begun(store, cells(), name=name, rounds=rounds, **facts)
    for own in (environment(), environment(torch_version="2.11.0")):
        environment_id = store.add_environment(own, {"é": [ODD_TEXT[0], 2**80]})
        for turn in range(rounds):
            for cell in cells():
                for attempt in range(noise.choice([1, 1, 2])):
                    store.add_trial(sweep_id, environment_id, odd_trial(cell, turn, attempt, noise))
    store.finish_sweep(sweep_id, "completed")
    return sweep_id


def decide(store: Store, sweep_id: str) -> None:
    """Verdicts and baselines of this sweep."""
    environment_id, at = environment().id, dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC)
    judged = {
        "claim": "P1",
        "experiment": ODD_TEXT[0],
        "verdict": "confirmed",
        "reason": ODD_TEXT[2],
    }
    store.add_verdicts(
        environment_id,
        [{**judged, "sweep_id": sweep_id, "measured": {"figure": 1.5, "é": [sweep_id]}}],
    )
    with store.writing() as connection:
        for hardware, note in ((HARDWARE, ODD_TEXT[3]), ("CPU", None)):
            row = {
                "name": f"main {ODD_TEXT[0]}",
                "hardware": hardware,
                "sweep_id": sweep_id,
                "note": note,
            }
            connection.execute(sa.insert(BASELINE).values(set_at=at, **row))


def odd_database(url: Any, sweeps: int = 2) -> list[str]:
    """Fill a database; the ids of its sweeps, oldest first."""
    with Store.open(url, mode="write") as store:
        ids = [
            sweep(store, name, seed)
            for seed, name in enumerate((ODD_TEXT[0], None, "third")[:sweeps])
        ]
        decide(store, ids[0])
        still = begun(store, cells(2), name="nothing yet")
    return [*ids, still]


def contents(url: Any) -> dict[str, list[str]]:
    """Every table but the baselines, with every column but `imported_at` and ids that the database
    gave; samples and traces are known by their trial."""
    found: dict[str, list[str]] = {}
    trials: dict[int, tuple] = {}
    with Store.open(url) as store, store.reading() as connection:
        for table in METADATA.sorted_tables:
            rows = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for row in rows:
                row.pop("imported_at", None)
                number = row.pop("id") if isinstance(row.get("id"), int) else None
                if table.name == "trial":
                    trials[number] = tuple(row[name] for name in KEYS)
                elif table.name in ("sample", "trace"):
                    row["trial_id"] = trials[row["trial_id"]]
            found[table.name] = sorted(repr(sorted(row.items())) for row in rows)
    del found["baseline"]
    return found


def set_state(url: Any, sweep_id: str, **values: Any) -> None:
    """Write columns of a sweep, as nothing in effbench does."""
    with Store.open(url, mode="write") as store, store.writing() as connection:
        connection.execute(sa.update(SWEEP).where(SWEEP.c.id == sweep_id).values(**values))


def info_of(db: Any, sweep: str = "last") -> SweepInfo:
    with Store.open(db) as store:
        return store.find_sweep(sweep)


def results_of(db: Any, sweep: str = "last") -> list[dict[str, Any]]:
    """The rows of the view `results`."""
    with Store.open(db) as store:
        results = store.results(store.find_sweep(sweep).id)
    return [result_row(result) for result in results]


def trials_of(db: Any, sweep: str = "last") -> list[dict[str, Any]]:
    """The trials of a sweep in order, with the `model` and the `mode` of their cells and their
    `samples`."""
    with Store.open(db) as store:
        sweep_id = store.find_sweep(sweep).id
        names = {
            cell.key: {"model": cell.model_name, "mode": cell.mode_name}
            for cell in store.planned(sweep_id)
        }
        rows = store.trials(sweep_id)
        return [
            {**vars(row), **names[row.cell_key], "samples": store.samples(row.id)} for row in rows
        ]


def export(db, out, *, sweeps=()):
    with opened(str(db)) as source:
        write_file(source, source.sweep_ids(sweeps), out)
    return out


def ids_of(store):
    return [sweep.id for sweep in reversed(store.sweeps())]


def take(source, db, *, sweeps=()):
    """Import a database; what became of each sweep."""
    with Store.open(db, mode="write") as store, opened(str(source)) as given:
        return list(copy(given, store, given.sweep_ids(sweeps)))


def outcomes(source, db, *, sweeps=()):
    return [arrival.outcome for arrival in take(source, db, sweeps=sweeps)]

"""Create a database of many synthetic trials with raw samples, as of sweeps on two GPUs, and time
commands on it.

    python benchmarks/many_trials.py --trials 28000 98000 1001000 --folder /big/disk
    python benchmarks/many_trials.py --trials 28000 98000 --url postgresql://me@host/empty

The database grows to each size in turn. The output lists the rate of `Store.record`, the bytes per
trial, and the wall time and peak memory of each command in a fresh process. Trials are copies of
measured ones with other times; samples and failures are synthetic. A sweep after the first ten has
the figures of one of these.
"""

from __future__ import annotations

import argparse
import datetime as dt
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from omegaconf import OmegaConf

from effbench.cell import Cell, Environment, Status, Trial
from effbench.config import shipped
from effbench.store import Store, schema
from effbench.store.trials import rebuild_results
from effbench.store.values import CODEC, SAMPLE_LIMIT, cell_row
from effbench.table import Column, Table

START = dt.datetime(2026, 1, 5, 8, tzinfo=dt.UTC)
GPUS = ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")
KINDS = ("mlp", "resnet", "bert", "gpt", "llama-decode", "vit", "moe", "unet")
MODES = (
    "eager",
    "default",
    "reduce-overhead",
    "max-autotune",
    "max-autotune-no-cudagraphs",
    "cuda-graph",
    "compile+graph",
)
#: Its sweep `h200` has trials of all these modes.
REFERENCE = Path(__file__).resolve().parents[1] / "results" / "reference" / "h200-sweeps.db"
TIMES = (
    "latency_ms",
    "latency_min_ms",
    "latency_p95_ms",
    "latency_median_low_ms",
    "latency_median_high_ms",
    "period_ms",
    "gpu_busy_ms",
)
#: Failures of cells: (status, reason, fraction of the cells).
FAILURES = (
    ("oom", "in prepare: CUDA out of memory. Tried to allocate 12.50 GiB.", 0.01),
    (
        "error",
        "in prepare: RuntimeError: CUDA error: operation not permitted when stream is capturing",
        0.01,
    ),
    (
        "unsupported",
        "the forward synchronises (.item()), which cannot be captured in a CUDA graph",
        0.01,
    ),
    ("degraded", "CUDA graphs skipped: mutated inputs (1 of 2 graphs)", 0.01),
)
_CHUNK = 5000
#: Models, batch sizes and rounds of each sweep.
MODELS, SIZES, ROUNDS = 40, (1, 4, 16, 64, 256), 5
#: Sweeps with figures of their own; an even number, because two GPUs take turns.
DISTINCT = 10


@dataclass(frozen=True)
class Shape:
    """Size of the database. Sweeps of 40 models alternate between the two GPUs. `latencies`,
    `periods`: median number of samples per trial (about 1,500 and 200 on an H200)."""

    trials: int
    latencies: int = 1500
    periods: int = 200

    @property
    def cells(self) -> int:
        """Number of cells of one sweep."""
        return min(MODELS * len(SIZES) * len(MODES), max(1, self.trials // ROUNDS))

    @property
    def sweeps(self) -> int:
        return max(1, round(self.trials / (self.cells * ROUNDS)))


def cells_of(shape: Shape) -> list[Cell]:
    """Return the cells: models × batch sizes × modes."""
    modes = [
        dict(OmegaConf.to_container(OmegaConf.load(shipped("conf") / "mode" / f"{name}.yaml")))
        for name in MODES
    ]
    for settings in modes:
        del settings["description"]
    found = []
    for index in range(shape.cells):
        point, mode = divmod(index, len(MODES))
        number, size = divmod(point, len(SIZES))
        kind = KINDS[number % len(KINDS)]
        width = 256 * (1 + number // len(KINDS))
        module = {
            "_target_": f"nets.{kind}.Net",
            "width": width,
            "depth": 12,
            "vocab": 32000,
            "seq": 1024,
        }
        model = {
            "name": f"{kind}-{width}",
            "module": module,
            "tolerance": None,
            "allow_nonfinite": False,
            "inputs": [{"name": "x", "shape": [1024, width], "dtype": "auto"}],
        }
        numerics = {
            "tf32": False,
            "matmul_precision": "highest",
            "cudnn_benchmark": False,
            "deterministic": False,
            "seed": 0,
        }
        found.append(
            Cell(model, SIZES[size], modes[mode], "bfloat16", "inference", "cuda", numerics)
        )
    return found


def environments_of() -> list[Environment]:
    return [
        Environment(
            gpu, memory, "570.86", "12.8", "2.13.0", "3.6.0", "3.12.4", "Xeon", "Linux-x86_64"
        )
        for gpu, memory in zip(GPUS, (150_000_000_000, 85_000_000_000), strict=True)
    ]


def fill(path: str | Path, shape: Shape) -> None:
    """Create the database at `path`, or add the sweeps that it lacks for this size."""
    cells = cells_of(shape)
    random = np.random.default_rng(0)
    with Store.open(path, mode="write") as store:
        ids = [store.add_environment(environment, {}) for environment in environments_of()]
        with store.writing() as connection:
            known = set(connection.scalars(sa.select(schema.CELL.c.key)))
            new = [cell_row(cell) for cell in cells if cell.key not in known]
            if new:
                connection.execute(sa.insert(schema.CELL), new)
        for number in range(len(store.sweeps()), shape.sweeps):
            sweep = _sweep_row(number)
            with store.writing() as connection:
                connection.execute(sa.insert(schema.SWEEP), sweep)
                if number >= DISTINCT:
                    copy_sweep(connection, _sweep_row(number % DISTINCT)["id"], sweep["id"])
                    continue
                planned = [
                    {"sweep_id": sweep["id"], "cell_key": cell.key, "position": position}
                    for position, cell in enumerate(cells)
                ]
                connection.execute(sa.insert(schema.PLANNED), planned)
                insert_trials(
                    connection, _trials(cells, shape, sweep, ids[number % 2], number % 2, random)
                )
                rebuild_results(connection, sweep["id"])


def insert_trials(
    connection: sa.Connection, rows: Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]
) -> None:
    first = _next_id(connection)
    for chunk in batched(rows, _CHUNK):
        trials = [{**row, "id": first + index} for index, (row, _) in enumerate(chunk)]
        blobs = [
            {"trial_id": first + index, **blob}
            for index, (_, own) in enumerate(chunk)
            for blob in own
        ]
        connection.execute(sa.insert(schema.TRIAL), trials)
        if blobs:
            connection.execute(sa.insert(schema.SAMPLE), blobs)
        first += len(chunk)
    _set_next_id(connection)


def batched(rows: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while chunk := list(islice(rows, size)):
        yield chunk


def copy_sweep(connection: sa.Connection, source: str, target: str) -> None:
    """Copy the plan, trials, samples and results of a sweep within the database."""
    of_source = sa.select(schema.TRIAL.c.id).where(schema.TRIAL.c.sweep_id == source)
    oldest = connection.scalar(
        sa.select(sa.func.min(schema.TRIAL.c.id)).where(schema.TRIAL.c.sweep_id == source)
    )
    offset = _next_id(connection) - oldest
    for table in (schema.PLANNED, schema.TRIAL, schema.RESULT, schema.SAMPLE):
        changed = {"sweep_id": sa.literal(target)}
        changed |= {name: table.c[name] + offset for name in ("id", "trial_id") if name in table.c}
        where = (
            table.c.trial_id.in_(of_source)
            if table is schema.SAMPLE
            else table.c.sweep_id == source
        )
        values = [changed.get(column.name, column) for column in table.columns]
        connection.execute(
            sa.insert(table).from_select(table.c.keys(), sa.select(*values).where(where))
        )
    _set_next_id(connection)


def _next_id(connection: sa.Connection) -> int:
    return (connection.scalar(sa.select(sa.func.max(schema.TRIAL.c.id))) or 0) + 1


def _set_next_id(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":  # explicit ids do not advance the sequence
        connection.execute(
            sa.text(
                "SELECT setval(pg_get_serial_sequence('trial', 'id'), (SELECT max(id) FROM trial))"
            )
        )


def _sweep_row(number: int) -> dict[str, Any]:
    started = START + dt.timedelta(days=7 * (number // 2), hours=number % 2)
    return {
        "id": f"{started:%Y%m%d-%H%M%S}-{number:04x}",
        "name": f"weekly-{number // 2}",
        "label": f"v1.{number // 2}",
        "state": "completed",
        "started_at": started,
        "finished_at": started + dt.timedelta(hours=9),
        "command": ["effbench", "-m", "mode=eager,default"],
        "overrides": ["mode=eager,default"],
        "protocol": {"name": "standard", "rounds": ROUNDS},
        "baseline_mode": "eager",
        "seed": 0,
        "rounds": ROUNDS,
        "git_revision": "4f2c9d1",
        "host": {"hostname": "made-up"},
    }


def recorded() -> dict[str, dict[str, Any]]:
    """Return mode -> a measured trial of it, as a row of `trial`."""
    with Store.open(REFERENCE) as store:
        sweep_id = store.find_sweep("h200").id
        modes = {cell.key: cell.mode_name for cell in store.planned(sweep_id)}
        return {
            modes[row["cell_key"]]: row for row in store.trials(sweep_id) if row["status"] == "ok"
        }


def _trials(
    cells: list[Cell],
    shape: Shape,
    sweep: dict[str, Any],
    environment_id: str,
    gpu: int,
    random: np.random.Generator,
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield rows of `trial`, each with its rows of `sample`, round by round as they are
    recorded."""
    chances, measured = random.random(len(cells)), recorded()
    for round_ in range(ROUNDS):
        for index, cell in enumerate(cells):
            status, reason, chance = "ok", None, float(chances[index])
            for kind, why, share in FAILURES if cell.mode_name != "eager" else ():
                if 0 <= chance < share:
                    status, reason = kind, why
                chance -= share
            started = sweep["started_at"] + dt.timedelta(seconds=6 * (round_ * len(cells) + index))
            facts = {
                "sweep_id": sweep["id"],
                "cell_key": cell.key,
                "environment_id": environment_id,
                "round": round_,
                "attempt": 0,
                "status": status,
                "reason": reason,
                "started_at": started,
                "recorded_at": started,
                "pid": 4000 + index,
                "gpu_index": 0,
                "gpu_uuid": f"GPU-{gpu}",
            }
            row = measured[cell.mode_name]
            if status not in ("ok", "degraded"):
                trace = "Traceback (most recent call last):\n" + "  File net.py, line 12\n" * 20
                yield (
                    dict.fromkeys(row)
                    | facts
                    | {"phase": "prepare", "wall_s": 6.1, "extra": {"traceback": trace}},
                    [],
                )
                continue
            scale = (1 + index // (len(MODES) * len(SIZES))) * (1 + cell.bs / 16) * (1 + 0.7 * gpu)
            scale *= random.lognormal(0, 0.004)
            row = row | facts | {name: row[name] * scale for name in TIMES}
            yield row, [*_samples(row, shape, random)]


def _samples(
    row: dict[str, Any], shape: Shape, random: np.random.Generator
) -> Iterator[dict[str, Any]]:
    for timer, count, noise in (
        ("latency_ms", shape.latencies, 0.02),
        ("period_ms", shape.periods, 0.003),
    ):
        many = int(np.clip(random.lognormal(np.log(count), 0.6), 30, SAMPLE_LIMIT))
        drawn = row[timer] * (
            1 + np.abs(random.normal(0, noise, many)) + noise * random.pareto(6, many)
        )
        # level 1 takes a fifth of the time of the store's level
        data = zlib.compress(drawn.astype("<f4").tobytes(), 1)
        yield {"timer": timer, "count": many, "stored": many, "codec": CODEC, "data": data}


# --- timing ---

#: ru_maxrss would include the memory of the parent process
MEASURED = """import sys; from effbench import cli; code = cli.run(sys.argv[1:])
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(peak[0], file=sys.stderr)
sys.exit(code)"""


def run(*args: str, codes: tuple[int, ...]) -> str:
    """Run a command in a fresh process, which must exit with one of these codes; return its seconds
    and peak MiB."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode not in codes:
        raise SystemExit(f"effbench {' '.join(args)} ended with {done.returncode}: {done.stderr}")
    return f"{seconds:.2f} s, {int(done.stderr.split()[-1]) / 1024:.0f} MiB"


def record_rate(url: str, shape: Shape, trials: int = 200) -> float:
    """Return how many trials per second `Store.record` adds to a sweep of one cell per model and
    batch size, which is then removed. Each call is one transaction."""
    cells = [cell for cell in cells_of(shape) if cell.mode_name == "eager"][:trials]
    random = np.random.default_rng(1)
    samples = {
        "latency_ms": random.lognormal(0, 0.01, shape.latencies).tolist(),
        "period_ms": random.lognormal(0, 0.01, shape.periods).tolist(),
    }
    with Store.open(url, mode="write") as store:
        environment_id = store.environments()[0]["id"]
        facts = {
            "command": [],
            "overrides": [],
            "protocol": {},
            "baseline_mode": "eager",
            "seed": 0,
            "rounds": 1,
            "host": {},
        }
        sweep_id = store.begin_sweep(
            name="rate", label=None, git_revision=None, plan=cells, **facts
        )
        began = time.perf_counter()
        for number in range(trials):
            cell = cells[number % len(cells)]
            trial = Trial(
                cell.key, number // len(cells), Status.OK, latency_ms=1.0, samples=samples
            )
            store.record(sweep_id, environment_id, trial)
        rate = trials / (time.perf_counter() - began)
        with store.writing() as connection:
            of_sweep = sa.select(schema.TRIAL.c.id).where(schema.TRIAL.c.sweep_id == sweep_id)
            connection.execute(
                sa.delete(schema.SAMPLE).where(schema.SAMPLE.c.trial_id.in_(of_sweep))
            )
            for table in (schema.RESULT, schema.TRIAL, schema.PLANNED):
                connection.execute(sa.delete(table).where(table.c.sweep_id == sweep_id))
            connection.execute(sa.delete(schema.SWEEP).where(schema.SWEEP.c.id == sweep_id))
    return rate


def size_of(url: str) -> int:
    """Return the bytes of the database."""
    with Store.open(url) as store, store.reading() as connection:
        if connection.dialect.name == "postgresql":
            return connection.scalar(sa.text("SELECT pg_database_size(current_database())"))
        pages = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return connection.scalar(sa.text(pages))


def timed(url: str, folder: Path, only: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each command with its seconds and peak MiB."""
    with Store.open(url, mode="write") as store:
        ids = [sweep.id for sweep in store.sweeps() if sweep.trials]
        newest, previous = ids[0], ids[2 % len(ids)]  # of the same GPU
        store.set_baseline("reference", previous)
    out, copy = folder / "sweeps.db", folder / "copy.db"
    commands = {
        "ls": ["ls"],
        "show": ["show"],
        "compare": ["compare", previous, newest],
        "check": ["check", "--baseline", "reference"],
        "history": ["history"],
        "report": ["report", "--sweep", newest, "--out", str(folder / "site"), "--force"],
        "report, Markdown": [
            "report",
            "--sweep",
            newest,
            "--format",
            "markdown",
            "--out",
            str(folder / "r.md"),
        ],
        "export, CSV": ["export", "--out", str(folder / "results.csv")],
        "export, JSON lines": ["export", "--out", str(folder / "results.jsonl")],
        "db check": ["db", "check"],
        "db check --deep": ["db", "check", "--deep"],
        "export --whole": ["export", "--whole", "--out", str(out)],
        "import": ["import", str(out)],
    }
    for name, words in commands.items():
        if only and name not in only:
            continue
        if name == "import" and not out.exists():
            out.symlink_to(Path(url).resolve())
        codes = (0, 1) if name == "check" else (0,)  # it may find changes
        yield name, run(*words, "--db", str(copy) if name == "import" else url, codes=codes)
    for path in (out, copy):
        path.unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--trials",
        type=int,
        nargs="+",
        default=[28_000, 98_000],
        help="sizes, each of at least 21,000",
    )
    parser.add_argument(
        "--url", help="an empty PostgreSQL database (default: a SQLite file in --folder)"
    )
    parser.add_argument(
        "--folder", help="existing folder for all files (default: a temporary folder)"
    )
    parser.add_argument(
        "--latencies", type=int, default=Shape.latencies, help="median number of samples per trial"
    )
    parser.add_argument(
        "--periods", type=int, default=Shape.periods, help="the same of the other timer"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="COMMAND", help="time only this command"
    )
    args = parser.parse_args()
    columns: dict[int, dict[str, str]] = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
        url = args.url or str(Path(args.folder or scratch) / "many.db")
        for trials in sorted(args.trials):
            shape = Shape(trials=trials, latencies=args.latencies, periods=args.periods)
            fill(url, shape)
            made = shape.sweeps * shape.cells * ROUNDS
            column = columns.setdefault(made, {})
            column["recorded trials per second"] = f"{record_rate(url, shape):.0f}"
            column["bytes per trial"] = f"{size_of(url) / made:.0f}"
            for name, column[name] in timed(url, Path(scratch), args.only):
                print(f"{made} trials: {name}: {column[name]}", flush=True)
    names = next(iter(columns.values()))
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    headings = ["", *(f"{made:,} trials" for made in columns)]
    print(Table.of([*map(Column, headings)], rows).render("markdown"))


if __name__ == "__main__":
    main()

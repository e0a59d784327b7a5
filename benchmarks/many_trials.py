"""Create a database of many synthetic trials with raw samples, as of sweeps on two GPUs, and time commands on it.

    python benchmarks/many_trials.py --trials 28000 98000 1001000 --folder /big/disk
    python benchmarks/many_trials.py --trials 28000 98000 --url postgresql://me@host/empty

The database grows to each size in turn. The output lists the rate of `Store.record`, the bytes per trial, and the wall
time and peak memory of each command in a fresh process. Trials, samples and failures are synthetic; the store derives
the results from them as usual. A sweep after the first ten has the figures of one of these.
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
COMPILED = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "compile+graph")
GAIN = {
    "eager": 1.0, "default": 1.3, "reduce-overhead": 2.2, "max-autotune": 1.4, "max-autotune-no-cudagraphs": 1.5,
    "cuda-graph": 2.1, "compile+graph": 2.6,
}  # fmt: skip
MODES = tuple(GAIN)
KERNELS = (
    "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x64_4x1x1_cga1x1x1_kernel0_0",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float, false>(int, float)",
    "triton_poi_fused__to_copy_add_gelu_mul_0",
    "triton_red_fused_native_layer_norm_1",
    "Memcpy DtoD (Device -> Device)",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x256_64x3_tn_align8>(Params)",
    "triton_per_fused__softmax_2",
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)>",
)
#: Failures of cells: (status, reason, fraction of the cells).
FAILURES = (
    ("oom", "in prepare: CUDA out of memory. Tried to allocate 12.50 GiB.", 0.01),
    ("error", "in prepare: RuntimeError: CUDA error: operation not permitted when stream is capturing", 0.01),
    ("unsupported", "the forward synchronises (.item()), which cannot be captured in a CUDA graph", 0.01),
    ("degraded", "CUDA graphs skipped: mutated inputs (1 of 2 graphs)", 0.01),
)
_CHUNK = 5000
#: Models, batch sizes and rounds of each sweep.
MODELS, SIZES, ROUNDS = 40, (1, 4, 16, 64, 256), 5
#: Sweeps with figures of their own; an even number, because two GPUs take turns.
DISTINCT = 10


@dataclass(frozen=True)
class Shape:
    """Size of the database. Sweeps of 40 models alternate between the two GPUs. `latencies`, `periods`: median number
    of samples per trial (about 1,500 and 200 on an H200)."""

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
    modes = [dict(OmegaConf.to_container(OmegaConf.load(shipped("conf") / "mode" / f"{name}.yaml"))) for name in MODES]
    for settings in modes:
        del settings["description"]
    found = []
    for index in range(shape.cells):
        point, mode = divmod(index, len(MODES))
        number, size = divmod(point, len(SIZES))
        kind = KINDS[number % len(KINDS)]
        width = 256 * (1 + number // len(KINDS))
        module = {"_target_": f"nets.{kind}.Net", "width": width, "depth": 12, "vocab": 32000, "seq": 1024}
        model = {
            "name": f"{kind}-{width}", "module": module, "tolerance": None, "allow_nonfinite": False,
            "inputs": [{"name": "x", "shape": [1024, width], "dtype": "auto"}],
        }  # fmt: skip
        numerics = {"tf32": False, "matmul_precision": "highest", "cudnn_benchmark": False, "deterministic": False,
                    "seed": 0}  # fmt: skip
        found.append(Cell(model, SIZES[size], modes[mode], "bfloat16", "inference", "cuda",
                          numerics))  # fmt: skip
    return found


def environments_of() -> list[Environment]:
    return [
        Environment(gpu, memory, "570.86", "12.8", "2.13.0", "3.6.0", "3.12.4", "Xeon", "Linux-x86_64")
        for gpu, memory in zip(GPUS, (150_000_000_000, 85_000_000_000), strict=True)
    ]


def fill(path: str | Path, shape: Shape) -> None:
    """Create the database at `path`, or add the sweeps that it lacks for this size."""
    cells = cells_of(shape)
    random = np.random.default_rng(0)
    with Store.open(path, mode="write") as store:
        ids = [store.add_environment(environment, {}) for environment in environments_of()]
        with store._writing() as connection:
            known = set(connection.scalars(sa.select(schema.CELL.c.key)))
            new = [cell_row(cell) for cell in cells if cell.key not in known]
            if new:
                connection.execute(sa.insert(schema.CELL), new)
        for number in range(len(store.sweeps()), shape.sweeps):
            sweep = _sweep_row(number)
            with store._writing() as connection:
                connection.execute(sa.insert(schema.SWEEP), sweep)
                if number >= DISTINCT:
                    copy_sweep(connection, _sweep_row(number % DISTINCT)["id"], sweep["id"])
                    continue
                planned = [{"sweep_id": sweep["id"], "cell_key": cell.key, "position": position}
                           for position, cell in enumerate(cells)]  # fmt: skip
                connection.execute(sa.insert(schema.PLANNED), planned)
                insert_trials(connection, _trials(cells, shape, sweep, ids[number % 2], number % 2, random))
                rebuild_results(connection, sweep["id"])


def insert_trials(
    connection: sa.Connection, rows: Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]
) -> None:  # fmt: skip
    first = _next_id(connection)
    for chunk in batched(rows, _CHUNK):
        trials = [{**row, "id": first + index} for index, (row, _) in enumerate(chunk)]
        blobs = [{"trial_id": first + index, **blob} for index, (_, own) in enumerate(chunk) for blob in own]
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
    oldest = connection.scalar(sa.select(sa.func.min(schema.TRIAL.c.id)).where(schema.TRIAL.c.sweep_id == source))
    offset = _next_id(connection) - oldest
    for table in (schema.PLANNED, schema.TRIAL, schema.RESULT, schema.SAMPLE):
        changed = {"sweep_id": sa.literal(target)}
        changed |= {name: table.c[name] + offset for name in ("id", "trial_id") if name in table.c}
        where = table.c.trial_id.in_(of_source) if table is schema.SAMPLE else table.c.sweep_id == source
        values = [changed.get(column.name, column) for column in table.columns]
        connection.execute(sa.insert(table).from_select(table.c.keys(), sa.select(*values).where(where)))
    _set_next_id(connection)


def _next_id(connection: sa.Connection) -> int:
    return (connection.scalar(sa.select(sa.func.max(schema.TRIAL.c.id))) or 0) + 1


def _set_next_id(connection: sa.Connection) -> None:
    if connection.dialect.name == "postgresql":  # explicit ids do not advance the sequence
        connection.execute(sa.text("SELECT setval(pg_get_serial_sequence('trial', 'id'), (SELECT max(id) FROM trial))"))


def _sweep_row(number: int) -> dict[str, Any]:
    started = START + dt.timedelta(days=7 * (number // 2), hours=number % 2)
    return {
        "id": f"{started:%Y%m%d-%H%M%S}-{number:04x}", "name": f"weekly-{number // 2}", "label": f"v1.{number // 2}",
        "state": "completed", "started_at": started, "finished_at": started + dt.timedelta(hours=9),
        "command": ["effbench", "-m", "mode=eager,default"], "overrides": ["mode=eager,default"],
        "protocol": {"name": "standard", "rounds": ROUNDS}, "baseline_mode": "eager", "seed": 0,
        "rounds": ROUNDS, "git_revision": "4f2c9d1", "host": {"hostname": "made-up"},
    }  # fmt: skip


def _trials(
    cells: list[Cell], shape: Shape, sweep: dict[str, Any], environment_id: str, gpu: int, random: np.random.Generator
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Yield rows of `trial`, each with its rows of `sample`, round by round as they are recorded."""
    chances = random.random(len(cells))
    for round_ in range(ROUNDS):
        for index, cell in enumerate(cells):
            status, reason, chance = "ok", None, float(chances[index])
            for kind, why, share in FAILURES if cell.mode_name != "eager" else ():
                if 0 <= chance < share:
                    status, reason = kind, why
                chance -= share
            started = sweep["started_at"] + dt.timedelta(seconds=6 * (round_ * len(cells) + index))
            row = dict.fromkeys(column.name for column in schema.TRIAL.columns)
            row |= {
                "sweep_id": sweep["id"], "cell_key": cell.key, "environment_id": environment_id, "round": round_,
                "attempt": 0, "status": status, "reason": reason, "started_at": started, "recorded_at": started,
                "pid": 4000 + index, "gpu_index": 0, "gpu_uuid": f"GPU-{gpu}", "wall_s": 6.1, "overhead_s": 0.3,
                "build_s": 0.4, "phase": "profile" if status in ("ok", "degraded") else "prepare", "extra": {},
            }  # fmt: skip
            if status not in ("ok", "degraded"):
                row["extra"] = {"traceback": "Traceback (most recent call last):\n" + "  File net.py, line 12\n" * 20}
                yield row, []
                continue
            level = 0.08 * (1 + index // (7 * len(SIZES)) % 40) * (1 + cell.bs / 16) * (1 + 0.7 * gpu)
            level *= (1 / GAIN[cell.mode_name]) ** (1 / (1 + cell.bs / 32)) * random.lognormal(0, 0.004)
            yield _measured(row, cell, level, shape, random)


def _measured(
    row: dict[str, Any], cell: Cell, level: float, shape: Shape, random: np.random.Generator
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the row with its figures, and the samples from which they follow."""
    taken = {"latency_ms": (level, shape.latencies, 0.02), "period_ms": (level * 0.8, shape.periods, 0.003)}
    blobs, values = [], {}
    for timer, (middle, count, noise) in taken.items():
        many = int(np.clip(random.lognormal(np.log(count), 0.6), 30, SAMPLE_LIMIT))
        drawn = (middle * (1 + np.abs(random.normal(0, noise, many)) + noise * random.pareto(6, many))).astype("<f4")
        values[timer] = drawn
        # level 1 takes a fifth of the time of the store's level
        blobs.append({"timer": timer, "count": many, "stored": many, "codec": CODEC,
                      "data": zlib.compress(drawn.tobytes(), 1)})  # fmt: skip
    latency, period = values["latency_ms"], values["period_ms"]
    low, median, high, p95 = (float(one) for one in np.quantile(latency, (0.49, 0.5, 0.51, 0.95)))
    compiles, graph = cell.mode_name in COMPILED, GAIN[cell.mode_name] > 2
    reserved = int(2**28 * (1 + cell.bs / 16) * (1.2 if graph else 1))
    power = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_c": 41, "power_w": 350.2,
             "clocks_event_reasons": []}  # fmt: skip
    shares = np.sort(random.dirichlet(np.ones(len(KERNELS))))[::-1]
    row |= {
        "latency_ms": median, "latency_min_ms": float(latency.min()), "latency_p95_ms": p95,
        "latency_median_low_ms": low, "latency_median_high_ms": high, "latency_samples": len(latency),
        "period_ms": float(np.median(period)), "period_samples": len(period), "calls_per_block": 40,
        "enqueue_ms": median * 0.6, "discarded_blocks": 0, "warmup_calls": 32, "steady": bool(random.random() < 0.98),
        "check_s": 0.3, "warmup_s": 0.2, "timing_s": 2.5, "prepare_s": 0.1, "first_call_s": 2.4 if compiles else 0.2,
        "compile_s": (9.0 if row["round"] == 0 else 1.4) if compiles else None,
        "compile_cache": ("cold" if row["round"] == 0 else "warm") if compiles else None,
        "build_peak_allocated_bytes": reserved // 2, "peak_allocated_bytes": reserved * 4 // 5,
        "peak_reserved_bytes": reserved, "prepare_peak_allocated_bytes": reserved,
        "graph_pool_bytes": reserved // 3 if graph else None, "process_gpu_bytes": reserved * 2,
        "peak_host_bytes": 2**31, "rel_error": 1e-3, "graph_breaks": 0, "recompiles": 0, "cudagraph_skips": 0,
        "gpu_busy_ms": float(np.median(period)) * 0.8, "kernels": 40, "flops": 1e9 * cell.bs, "min_bytes": 1e8,
        "compute_floor_ms": median * 0.3, "memory_floor_ms": median * 0.2, "sm_clock_mhz": 1980,
        "memory_clock_mhz": 3201, "temperature_c": 41 + row["round"], "power_w": 350.2, "energy_mj": median * 300,
        "foreign_processes": 0,
        "extra": {
            "profile": {"calls": 12, "kernels_in_graphs": 40 if graph else 0, "top": [
                {"name": name, "count": 4.0, "ms": float(share) * median, "share": float(share)}
                for name, share in zip(KERNELS, shares, strict=True)
            ]},
            "gpu_before": power, "gpu_after": power, "preempted": 3, "facts": {}, "graphs": 1,
            "cache": {"hits": 0, "misses": 1},
            "phase_seconds": {"setup": 0.24, "build": 0.4, "check": 0.3, "prepare": 0.1, "warmup": 0.2, "timing": 2.5},
        },
    }  # fmt: skip
    return row, blobs


# --- timing ---

#: ru_maxrss would include the memory of the parent process
MEASURED = """import sys; from effbench import cli; code = cli.run(sys.argv[1:])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")), file=sys.stderr)
sys.exit(code)"""


def run(*args: str, codes: tuple[int, ...]) -> str:
    """Run a command in a fresh process, which must exit with one of these codes; return its seconds and peak MiB."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", MEASURED, *args], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode not in codes:
        raise SystemExit(f"effbench {' '.join(args)} ended with {done.returncode}: {done.stderr}")
    return f"{seconds:.2f} s, {int(done.stderr.split()[-1]) / 1024:.0f} MiB"


def record_rate(url: str, shape: Shape, trials: int = 200) -> float:
    """Return how many trials per second `Store.record` adds to a sweep of one cell per model and batch size, which is
    then removed. Each call is one transaction."""
    cells = [cell for cell in cells_of(shape) if cell.mode_name == "eager"][:trials]
    random = np.random.default_rng(1)
    samples = {"latency_ms": random.lognormal(0, 0.01, shape.latencies).tolist(),
               "period_ms": random.lognormal(0, 0.01, shape.periods).tolist()}  # fmt: skip
    with Store.open(url, mode="write") as store:
        environment_id = store.environments()[0]["id"]
        facts = {"command": [], "overrides": [], "protocol": {}, "baseline_mode": "eager", "seed": 0, "rounds": 1,
                 "host": {}}  # fmt: skip
        sweep_id = store.begin_sweep(name="rate", label=None, git_revision=None, plan=cells, **facts)
        began = time.perf_counter()
        for number in range(trials):
            cell = cells[number % len(cells)]
            trial = Trial(cell.key, number // len(cells), Status.OK, latency_ms=1.0, samples=samples)
            store.record(sweep_id, environment_id, trial)
        rate = trials / (time.perf_counter() - began)
        with store._writing() as connection:
            of_sweep = sa.select(schema.TRIAL.c.id).where(schema.TRIAL.c.sweep_id == sweep_id)
            connection.execute(sa.delete(schema.SAMPLE).where(schema.SAMPLE.c.trial_id.in_(of_sweep)))
            for table in (schema.RESULT, schema.TRIAL, schema.PLANNED):
                connection.execute(sa.delete(table).where(table.c.sweep_id == sweep_id))
            connection.execute(sa.delete(schema.SWEEP).where(schema.SWEEP.c.id == sweep_id))
    return rate


def size_of(url: str) -> int:
    """Return the bytes of the database."""
    with Store.open(url) as store, store._reading() as connection:
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
        "report, Markdown": ["report", "--sweep", newest, "--format", "markdown", "--out", str(folder / "r.md")],
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trials", type=int, nargs="+", default=[28_000, 98_000], help="sizes, each of at least 21,000"
    )
    parser.add_argument("--url", help="an empty PostgreSQL database (default: a SQLite file in --folder)")
    parser.add_argument("--folder", help="existing folder for all files (default: a temporary folder)")
    parser.add_argument("--latencies", type=int, default=Shape.latencies, help="median number of samples per trial")
    parser.add_argument("--periods", type=int, default=Shape.periods, help="the same of the other timer")
    parser.add_argument("--only", action="append", default=[], metavar="COMMAND", help="time only this command")
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

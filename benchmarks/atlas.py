"""Measure real models at batch sizes 1, 8 and 64 in five modes and bfloat16, in as many runs as
that takes.

    python benchmarks/atlas.py --db atlas.db --minutes 25 [overrides]
    python benchmarks/atlas.py --db atlas.db --join results/reference/h200-sweeps.db [--name NAME]

Each model is a sweep of its own with five rounds and two compilations. The command resumes the
sweeps that have begun, then begins others, in order; after `--minutes` it interrupts the current
one. Run it again, on the same kind of GPU, until it says that all are complete. Compiling with
autotuning takes 130 s for bert-base and a vision transformer and more for convolutional networks.
Thus convolutional networks do not have these three modes; the others have them in sweeps of their
own for each batch size.

`--join` adds the trials of the complete sweeps, without samples, to one sweep of a reference
database, which has one kind of GPU. They replace its trials of the same cells."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path

from effbench.store import Store
from effbench.store.maintenance import upgrade

NAME = "atlas"
COMMON = ["dtype=bfloat16", "protocol=standard", "protocol.budget_s=1", "on_failure=ignore"]
MODES = "mode=eager,default,reduce-overhead,cuda-graph,default+graph"
TUNED = "mode=eager,max-autotune,max-autotune-no-cudagraphs,compile+graph"
SIZES = "bs=1,8,64"
VISION = {
    "torchvision": ["resnet50", "convnext_tiny"],
    "timm": ["mobilenetv3_large_100", "vit_base_patch16_224"],
}
CONVOLUTIONS = {"resnet50", "convnext_tiny", "mobilenetv3_large_100"}
#: Architecture -> tasks.
TRANSFORMERS = {
    "gpt2": ["decode"],
    "bert-base": ["encode"],
    "whisper-tiny": ["logits"],
    "t5-small": ["logits"],
    "llama-1b": ["decode", "prefill"],
    "qwen2-0.5b": ["decode"],
}
#: End of the name of a sweep with autotuning -> its batch size.
AUTOTUNED = {"": 8, "-1": 1, "-64": 64}
#: The least time that is worth beginning a sweep, and that an interrupted one takes to end.
MARGIN_S = 30


def networks() -> dict[str, list[str]]:
    """Return name -> overrides of the model."""
    models = {}
    for library, archs in VISION.items():
        for arch in archs:
            models[arch] = [f"model={library}", f"model.arch={arch}"]
    for arch, tasks in TRANSFORMERS.items():
        for task in tasks:
            name = f"{arch}-{task}"
            words = [f"model.arch={arch}", f"model.task={task}", f"model.name={name}"]
            models[name] = ["model=transformers", *words]
    return models


def sweeps() -> dict[str, list[str]]:
    """Return name of a sweep -> its overrides."""
    models = networks()
    overrides = {}
    for name, model in models.items():
        overrides[f"{NAME}-{name}"] = [*model, MODES, SIZES]
    for suffix, size in AUTOTUNED.items():
        for name, model in models.items():
            if name not in CONVOLUTIONS:
                overrides[f"{NAME}-{name}-autotuned{suffix}"] = [*model, TUNED, f"bs={size}"]
    return overrides


def states(db: str) -> dict[str, str]:
    """Return name -> state of the newest sweep of that name in the database, if there is one."""
    if not Path(db).exists():
        return {}
    with Store.open(db) as store:
        oldest_first = reversed(store.sweeps())
        return {sweep.name: sweep.state for sweep in oldest_first if sweep.name}


# --- measure


def measure(db: str, minutes: float, wanted: Sequence[str], overrides: Sequence[str]) -> None:
    """Run the wanted sweeps that are not complete, those that have begun first, and interrupt the
    last one in time."""
    until_s = time.monotonic() + 60 * minutes
    known = states(db)
    every = sweeps()
    for name in sorted(wanted, key=lambda name: name not in known):
        left_s = until_s - time.monotonic() - MARGIN_S
        if known.get(name) == "completed" or left_s < MARGIN_S:
            continue
        words = [f"sweep.name={name}", *every[name], *COMMON, *overrides]
        if name in known:
            words = [f"resume={name}"]
        command = [sys.executable, "-m", "effbench", "-m", *words, f"db={db}"]
        with subprocess.Popen(command) as process:
            try:
                process.wait(left_s)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)


def print_missing(db: str, wanted: Sequence[str]) -> None:
    known = states(db)
    missing = [name for name in wanted if known.get(name) != "completed"]
    complete = len(wanted) - len(missing)
    names = ", ".join(missing) or "none"
    print(f"complete: {complete} of {len(wanted)}; missing: {names}")


# --- join


def join(db: str, reference: str, name: str) -> None:
    """Add the complete sweeps of `db` to the sweep `name` of `reference`; both are SQLite files. Of
    the machine, only its GPU and its software are kept, and no paths. Exits if an import fails or
    the sweep would have results of several GPUs; the reference then keeps what it has."""
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        draft = shutil.copy(reference, Path(folder) / "reference.db")
        upgrade(str(draft))
        added = import_complete(db, draft)
        with closing(sqlite3.connect(draft)) as connection, connection:
            target = sweep_named(connection, name)
            if target is None:
                target = added[0]
            write_row(connection, target, name, {target, *added})
            for sweep_id in added:
                if sweep_id != target:
                    move(connection, sweep_id, target)
            require_one_gpu(connection, target, name)
            strip(connection)
        with Store.open(draft, mode="write") as store:
            store.rebuild_results(target)
        shutil.copy(draft, reference)


def import_complete(db: str, draft: Path) -> list[str]:
    """Import the complete sweeps of the atlas into the draft; return their ids, oldest first."""
    with Store.open(db) as store:
        complete = [
            sweep.id
            for sweep in reversed(store.sweeps())
            if (sweep.name or "").startswith(f"{NAME}-") and sweep.state == "completed"
        ]
    if not complete:
        sys.exit(f"{db} has no complete sweep whose name begins with {NAME}-")
    command = [sys.executable, "-m", "effbench", "import", db, "--db", str(draft)]
    for sweep_id in complete:
        command += ["--sweep", sweep_id]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        sys.exit(code)
    return complete


def sweep_named(connection: sqlite3.Connection, name: str) -> str | None:
    """Return the id of the reference's sweep of this name; None if there is none."""
    row = connection.execute("SELECT id FROM sweep WHERE name = ?", [name]).fetchone()
    if row is None:
        return None
    return row[0]


def write_row(
    connection: sqlite3.Connection, target: str, name: str, parts: Collection[str]
) -> None:
    """Write into the row of the joined sweep what its parts have in common."""
    marks = ", ".join("?" * len(parts))
    query = f"SELECT overrides, finished_at FROM sweep WHERE id IN ({marks}) ORDER BY started_at"
    rows = connection.execute(query, [*parts]).fetchall()
    overrides = [json.loads(words) for words, _ in rows]
    shared = []
    for word in overrides[0]:
        if not word.startswith("db=") and all(word in others for others in overrides):
            shared.append(word)
    words = json.dumps(shared)
    finished_at = max(finished_at for _, finished_at in rows)
    connection.execute(
        "UPDATE sweep SET name = ?, label = 'reference', finished_at = ?, command = ?,"
        " overrides = ?, host = '{}', git_revision = NULL WHERE id = ?",
        [name, finished_at, words, words, target],
    )


def move(connection: sqlite3.Connection, sweep_id: str, target: str) -> None:
    """Move the cells and trials of a sweep to the end of another one, in which they replace the
    trials of the same cells, and remove the sweep."""
    keys = connection.execute("SELECT cell_key FROM sweep_cell WHERE sweep_id = ?", [sweep_id])
    replaced = [(target, key) for (key,) in keys]
    trials = "SELECT id FROM trial WHERE sweep_id = ? AND cell_key = ?"
    for table in ("sample", "trace"):
        connection.executemany(f"DELETE FROM {table} WHERE trial_id IN ({trials})", replaced)
    for table in ("trial", "result", "sweep_cell"):
        query = f"DELETE FROM {table} WHERE sweep_id = ? AND cell_key = ?"
        connection.executemany(query, replaced)
    connection.execute(
        "UPDATE sweep_cell SET sweep_id = :target, position = position + (SELECT"
        " coalesce(max(position) + 1, 0) FROM sweep_cell WHERE sweep_id = :target)"
        " WHERE sweep_id = :sweep_id",
        {"target": target, "sweep_id": sweep_id},
    )
    connection.execute("UPDATE trial SET sweep_id = ? WHERE sweep_id = ?", [target, sweep_id])
    connection.execute("DELETE FROM result WHERE sweep_id = ?", [sweep_id])
    connection.execute("DELETE FROM sweep WHERE id = ?", [sweep_id])


def require_one_gpu(connection: sqlite3.Connection, target: str, name: str) -> None:
    query = """SELECT DISTINCT gpu_name FROM trial
               JOIN environment ON environment.id = environment_id WHERE sweep_id = ?"""
    gpus = [gpu for (gpu,) in connection.execute(query, [target])]
    if len(gpus) > 1:
        names = ", ".join(sorted(map(str, gpus)))
        sys.exit(f"{name} would have results of several GPUs: {names}; give another --name")


def strip(connection: sqlite3.Connection) -> None:
    """Remove samples, tracebacks, logs and paths."""
    connection.execute("DELETE FROM sample")
    connection.execute("UPDATE trial SET extra = json_remove(extra, '$.traceback', '$.log')")
    connection.create_function("without_folder", 1, without_folder)
    connection.execute("UPDATE trial SET reason = without_folder(reason) WHERE reason IS NOT NULL")


def without_folder(text: str) -> str:
    """Return the text without the folders in which packages are installed."""
    return re.sub(r"/\S*/site-packages/", "", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--db", required=True)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--minutes", type=float, help="how long to measure")
    what.add_argument(
        "--join", metavar="REFERENCE.db", help="add what is complete to this database"
    )
    parser.add_argument("--name", default=NAME, help="sweep of the reference to join to")
    parser.add_argument("--only", help="names of sweeps, such as atlas-vit,atlas-resnet50")
    args, overrides = parser.parse_known_args()
    if args.join:
        join(args.db, args.join, args.name)
        return
    wanted = list(sweeps())
    if args.only:
        wanted = args.only.split(",")
    measure(args.db, args.minutes, wanted, overrides)
    print_missing(args.db, wanted)


if __name__ == "__main__":
    main()

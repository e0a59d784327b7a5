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
from contextlib import closing
from pathlib import Path

from effbench.core.errors import EffbenchError
from effbench.store import Store

NAME = "atlas"
COMMON = ["dtype=bfloat16", "protocol=standard", "protocol.budget_s=1", "on_failure=ignore"]
MODES = "eager,default,reduce-overhead,cuda-graph,default+graph"
TUNED = "eager,max-autotune,max-autotune-no-cudagraphs,compile+graph"
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
# the least time that is worth beginning a sweep, and that an interrupted one takes to end
MARGIN_S = 30


def sweeps() -> dict[str, list[str]]:
    """Return name of a sweep -> its model and modes."""
    networks = {
        arch: [f"model={library}", f"model.arch={arch}"]
        for library, names in VISION.items()
        for arch in names
    }
    for arch, tasks in TRANSFORMERS.items():
        for task in tasks:
            name = f"{arch}-{task}"
            networks[name] = [
                "model=transformers",
                f"model.arch={arch}",
                f"model.task={task}",
                f"model.name={name}",
            ]
    found = {f"{NAME}-{name}": [*words, f"mode={MODES}", SIZES] for name, words in networks.items()}
    for suffix, size in AUTOTUNED.items():
        for name in [name for name in networks if name not in CONVOLUTIONS]:
            found[f"{NAME}-{name}-autotuned{suffix}"] = [
                *networks[name],
                f"mode={TUNED}",
                f"bs={size}",
            ]
    return found


def states(db: str) -> dict[str, str]:
    """Return name -> state of the newest sweep of that name in the database."""
    try:
        with Store.open(db) as store:
            oldest_first = reversed(store.sweeps())
            return {sweep.name: sweep.state for sweep in oldest_first if sweep.name}
    except EffbenchError:  # there is no database yet
        return {}


def gpus(connection: sqlite3.Connection, names: list[str]) -> set[str]:
    marks = ", ".join("?" * len(names))
    query = f"""SELECT DISTINCT gpu_name FROM trial JOIN sweep ON sweep.id = sweep_id
                JOIN environment ON environment.id = environment_id WHERE name IN ({marks})"""
    return {gpu for (gpu,) in connection.execute(query, names)}


def join(db: str, reference: str, name: str) -> None:
    """Add the complete sweeps of `db` to the sweep `name` of `reference`; both are SQLite files. Of
    the machine, only its GPU and its software are kept, and no paths."""
    names = [
        name
        for name, state in states(db).items()
        if name.startswith(f"{NAME}-") and state == "completed"
    ]
    with closing(sqlite3.connect(db)) as connection:
        marks = ", ".join("?" * len(names))
        query = (
            "SELECT DISTINCT cell_key FROM sweep_cell JOIN sweep ON id = sweep_id WHERE name IN"
            f" ({marks})"
        )
        keys = connection.execute(query, names).fetchall()
        found = gpus(connection, names)
    with tempfile.TemporaryDirectory(prefix="effbench-") as folder:
        draft = shutil.copy(reference, Path(folder) / "reference.db")
        with closing(sqlite3.connect(draft)) as connection, connection:
            if len(found := found | gpus(connection, [name])) > 1:
                sys.exit(
                    f"{name} would have results of several GPUs: {', '.join(sorted(found))}; give"
                    " another --name"
                )
            connection.execute("PRAGMA foreign_keys = ON")
            query = "SELECT id, started_at, overrides FROM sweep WHERE name = ?"
            known = connection.execute(query, [name]).fetchone()
            for table in ("trial", "result", "sweep_cell") if known else ():
                connection.executemany(
                    f"DELETE FROM {table} WHERE sweep_id = ? AND cell_key = ?",
                    [(known[0], *key) for key in keys],
                )
            last = (
                "SELECT coalesce(max(position) + 1, 0) FROM sweep_cell JOIN sweep ON id = sweep_id"
                " WHERE name = ?"
            )
            (position,) = connection.execute(last, [name]).fetchone()
        copied = shutil.copy(db, Path(folder) / "joined.db")
        with closing(sqlite3.connect(copied, isolation_level=None)) as connection:
            query = (
                f"SELECT id, started_at, overrides FROM sweep WHERE name IN ({marks}) ORDER BY"
                " started_at"
            )
            rows = connection.execute(query, names).fetchall()
            target, started_at = (known or rows[0])[:2]
            for sweep_id, *_ in rows:
                moved = (
                    "UPDATE sweep_cell SET sweep_id = ?, position = position + ? WHERE sweep_id = ?"
                )
                position += connection.execute(moved, [target, position, sweep_id]).rowcount
                connection.execute(
                    "UPDATE trial SET sweep_id = ? WHERE sweep_id = ?", [target, sweep_id]
                )
            connection.execute("DELETE FROM sample")
            connection.execute(
                "UPDATE trial SET extra = json_remove(extra, '$.traceback', '$.log')"
            )
            connection.create_function(
                "without_folder", 1, lambda text: re.sub(r"/\S*/site-packages/", "", text)
            )
            connection.execute(
                "UPDATE trial SET reason = without_folder(reason) WHERE reason IS NOT NULL"
            )
            (ended,) = connection.execute("SELECT max(finished_at) FROM sweep").fetchone()
            first, *others = rows
            connection.executemany(
                "DELETE FROM sweep WHERE id = ?", [[sweep_id] for sweep_id, *_ in others]
            )
            given = [json.loads(overrides) for *_, overrides in (*rows, *filter(None, [known]))]
            shared = [word for word in given[0] if all(word in other for other in given)]
            words = json.dumps([word for word in shared if not word.startswith("db=")])
            facts = {
                "id": target,
                "name": name,
                "label": "reference",
                "started_at": started_at,
                "finished_at": ended,
                "command": words,
                "overrides": words,
                "host": "{}",
                "git_revision": None,
            }
            changes = ", ".join(f"{column} = ?" for column in facts)
            connection.execute(
                f"UPDATE sweep SET {changes} WHERE id = ?", [*facts.values(), first[0]]
            )
        # an import keeps the words that are there
        with closing(sqlite3.connect(draft)) as connection, connection:
            connection.execute(
                "UPDATE sweep SET command = ?, overrides = ? WHERE id = ?", [words, words, target]
            )
        command = [
            sys.executable,
            "-m",
            "effbench",
            "import",
            copied,
            "--sweep",
            target,
            "--db",
            draft,
        ]
        code = subprocess.run(command).returncode
        if code == 0:  # else the reference keeps what it has
            shutil.copy(draft, reference)
        sys.exit(code)


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
    arguments, overrides = parser.parse_known_args()
    if arguments.join:
        join(arguments.db, arguments.join, arguments.name)
    until, every, only = time.monotonic() + 60 * arguments.minutes, sweeps(), arguments.only
    wanted = {name: words for name, words in every.items() if not only or name in only.split(",")}
    known = states(arguments.db)
    for name, words in sorted(wanted.items(), key=lambda item: item[0] not in known):
        left = until - time.monotonic() - MARGIN_S
        if known.get(name) == "completed" or left < MARGIN_S:
            continue
        given = {word.partition("=")[0] for word in overrides}
        words = [
            *(word for word in (*words, *COMMON) if word.partition("=")[0] not in given),
            *overrides,
        ]
        chosen = [f"resume={name}"] if name in known else [f"sweep.name={name}", *words]
        command = [sys.executable, "-m", "effbench", "-m", *chosen, f"db={arguments.db}"]
        with subprocess.Popen(command) as process:
            try:
                process.wait(left)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
    known = states(arguments.db)
    missing = [name for name in wanted if known.get(name) != "completed"]
    print(
        f"complete: {len(wanted) - len(missing)} of {len(wanted)}; missing:"
        f" {', '.join(missing) or 'none'}"
    )


if __name__ == "__main__":
    main()

"""What a trial costs beyond its own work, and what a user waits for one cell.

    python benchmarks/overhead.py [--rounds 3]

Prints, from a database made for the purpose: the harness overhead of an eager trial (wall time less building,
preparing, checking, warming up and timing), the set-up of a compiled trial whose compile cache is warm (overhead and
preparation: from asking for the trial until the step is ready, less building the model), and the wall time of a whole
command for one eager BERT cell with 1 s of timing.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import effbench
from effbench.store import Store

SECOND = ["protocol.budget_s=1", "protocol.min_time_s=1"]


def trials(db: str, sweep_id: str) -> list[dict]:
    with Store.open(db) as store:
        return store.trials(sweep_id)


def spread(values: list[float]) -> str:
    return f"{median(values):.2f} s ({min(values):.2f}–{max(values):.2f}, {len(values)} trials)"


def eager_overhead(db: str, rounds: int, isolation: str) -> None:
    sweep = effbench.sweep(
        ["model=mlp", "bs=8", "mode=eager", f"protocol.rounds={rounds}", f"isolation={isolation}", f"db={db}", *SECOND]
    )
    values = [trial["overhead_s"] for trial in trials(db, sweep.id)]
    print(f"harness overhead, eager mlp bs 8, isolation={isolation}: {spread(values)}")


def warm_set_up(db: str, rounds: int) -> None:
    sweep = effbench.sweep(["model=mlp", "bs=8", "mode=default", f"protocol.rounds={rounds + 1}", f"db={db}", *SECOND])
    found = trials(db, sweep.id)
    for state in ("cold", "warm"):
        some = [trial for trial in found if trial["compile_cache"] == state]
        print(
            f"set-up, compiled mlp bs 8, {state} cache: {spread([t['overhead_s'] + t['compile_s'] for t in some])}, "
            f"of which compiling {spread([t['compile_s'] for t in some])}"
        )


def one_bert_cell(db: str) -> None:
    if importlib.util.find_spec("transformers") is None:
        print("one eager BERT cell: transformers is not installed")
        return
    start = time.perf_counter()
    subprocess.run(
        [
            sys.executable,
            "-m",
            "effbench",
            "model=bert-base",
            "bs=1",
            "mode=eager",
            "protocol=quick",
            f"db={db}",
            *SECOND,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    print(f"whole command, one eager bert-base cell with 1 s of timing: {time.perf_counter() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        db = str(Path(folder) / "overhead.db")
        for isolation in ("fork", "spawn"):
            eager_overhead(db, rounds, isolation)
        warm_set_up(db, rounds)
        one_bert_cell(db)


if __name__ == "__main__":
    main()

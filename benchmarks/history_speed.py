"""How long `effbench history` takes over a large database, reading it included.

    python benchmarks/history_speed.py [--cells 1000] [--sweeps 200] [--db FILE]

The database is made up (benchmarks/synthetic.py); a tenth of its cells take a step. Beside the seconds of the whole
command stand those of its parts, and how many of the steps were found within one sweep.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from synthetic import Plan, fill

from effbench.comparison.history import DEFAULT_METRICS, columns_of, history
from effbench.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=200)
    parser.add_argument("--db", help="keep the database here (default: a temporary one)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "history.db")
        start = time.perf_counter()
        planted = fill(db, Plan(cells=args.cells, sweeps=args.sweeps))
        size = Path(db).stat().st_size / 2**20
        print(f"{args.cells} cells × {args.sweeps} sweeps made in {time.perf_counter() - start:.1f} s, {size:.0f} MiB")

        start = time.perf_counter()
        with Store.open(db) as store:
            series = store.series(columns_of(DEFAULT_METRICS))
        read = time.perf_counter()
        found = history(series, DEFAULT_METRICS)
        judged = time.perf_counter()
        print(f"read {len(series.rows)} results: {read - start:.1f} s")
        print(f"judge {len(found.states)} series of {len(DEFAULT_METRICS)} metrics: {judged - read:.1f} s")

        start = time.perf_counter()
        for more in ([], ["--metric", "latency_ms"]):
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "effbench", "history", "--db", db, *more], check=True, stdout=subprocess.DEVNULL
            )
            print(f"effbench history {' '.join(more)}: {time.perf_counter() - start:.1f} s")

        place = {sweep["id"]: index for index, sweep in enumerate(series.sweeps)}
        changes = [event for event in found.events if event.series.metric == "latency_ms" and event.kind == "change"]
        near = sum(
            any(e.series.cell_key == one.cell_key and abs(place[e.after] - one.sweep) <= 1 for e in changes)
            for one in planted
        )
        steps = len(planted) + sum(one.undone is not None for one in planted)
        print(
            f"{near} of {len(planted)} planted steps found within one sweep; {len(changes)} changes for {steps} steps"
        )


if __name__ == "__main__":
    main()

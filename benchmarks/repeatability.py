"""Do ten sweeps of an unchanged matrix say the same, and do their intervals hold what they promise?

    python benchmarks/repeatability.py [--sweeps 10] [--db FILE] [--format text|markdown]

Runs so many standard sweeps of four cells (two launch-bound: `mlp` and `tiny`, eager; two GPU-bound: `attention` and
`lin3`; all with bs 64) and prints, a cell: the spread of the sweeps' results, how many pairs of sweeps agree within
1 %, and how many of the stated 95 % intervals contain the mean of all sweeps. With `--db` sweeps are added to those
that the database has (`--sweeps 0` only reads).
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import tempfile
from pathlib import Path

import tables

import effbench
from effbench.store import Store

NAME = "repeatability"
MATRIX = ["model=mlp,tiny,attention,lin3", "bs=64", "mode=eager", f"sweep.name={NAME}"]
KINDS = {"mlp": "launch-bound", "tiny": "launch-bound", "attention": "GPU-bound", "lin3": "GPU-bound"}
METRICS = {
    "latency": ("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms"),
    "period": ("period_ms", "period_ci_low_ms", "period_ci_high_ms"),
}
CLOSE = 0.01


def results(db: str) -> list[dict]:
    """Rows of the view of all sweeps of this name, `ok` ones."""
    with Store.open(db) as store:
        return [row for row in store.results() if row["sweep_name"] == NAME and row["status"] == "ok"]


def rows_of(found: list[dict]) -> list[list[str]]:
    rows = []
    for metric, (value, low, high) in METRICS.items():
        for model, kind in KINDS.items():
            cell = [row for row in found if row["model"] == model and row[value] is not None]
            if len(cell) < 2:
                continue
            logs = [math.log(row[value]) for row in cell]
            mean = math.exp(statistics.fmean(logs))
            pairs = [abs(math.expm1(a - b)) <= CLOSE for a, b in itertools.combinations(logs, 2)]
            held = [row[low] <= mean <= row[high] for row in cell if row[low] is not None]
            width = statistics.fmean(math.log(row[high] / row[low]) / 2 for row in cell if row[low] is not None)
            rows.append(
                [
                    model,
                    kind,
                    metric,
                    str(len(cell)),
                    f"{mean:.4f}",
                    f"{statistics.stdev(logs):.2%}",
                    f"± {width:.2%}",
                    f"{statistics.fmean(pairs):.0%}",
                    f"{sum(held)} of {len(held)}",
                ]
            )
    return rows


def summary(found: list[dict]) -> str:
    close, held = {"GPU-bound": [], "launch-bound": []}, []
    for value, low, high in METRICS.values():
        for model, kind in KINDS.items():
            cell = [row for row in found if row["model"] == model and row[low] is not None]
            if len(cell) < 2:
                continue
            logs = [math.log(row[value]) for row in cell]
            mean = math.exp(statistics.fmean(logs))
            close[kind] += [abs(math.expm1(a - b)) <= CLOSE for a, b in itertools.combinations(logs, 2)]
            held += [row[low] <= mean <= row[high] for row in cell]
    said = [f"{kind}: {statistics.fmean(pairs):.1%} of {len(pairs)} pairs" for kind, pairs in close.items() if pairs]
    return f"within 1 %: {'; '.join(said)}. Intervals that hold the mean of all sweeps: {sum(held)} of {len(held)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=10, help="sweeps to run (default: %(default)s)")
    parser.add_argument("--db", help="keep them there (default: a temporary database)")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "repeatability.db")
        for number in range(args.sweeps):
            effbench.sweep([*MATRIX, f"sweep.seed={number}", f"db={db}", *more])
        found = results(db)
    headings = ["model", "kind", "metric", "sweeps", "ms", "SD of sweeps", "interval", "pairs within 1 %", "mean held"]
    print(tables.render(headings, rows_of(found), args.format))
    print(summary(found))


if __name__ == "__main__":
    main()

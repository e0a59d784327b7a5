"""Which slowdowns does a comparison of two standard sweeps call `slower`, and how often does it cry wolf?

    python benchmarks/injected.py [--rounds 24] [--kind gpu host] [--db FILE] [--format text|markdown]

Delays of 1, 2, 3, 5 and 10 % of a call are injected on the GPU (into an eager attention block with bs 64, which is
GPU-bound) and, apart, on the host (into an eager `mlp` with bs 8, which is launch-bound). All variants of a kind run
interleaved in one sweep of the standard protocol with many rounds. From its trials two sweeps of five trials each are
drawn again and again, one of the unchanged model and one of the delayed, and compared by effbench's own rules
(effbench.analysis.verdicts, floor 2 %, 5 %). The row with no delay compares trials of the unchanged model with others
of it: what it calls slower or faster is false.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import tempfile
from collections import Counter
from pathlib import Path

import tables

import effbench
from effbench.stats.significance import compare
from effbench.store import Store

LEVELS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.10)
HERE = Path(__file__).resolve().parent
KINDS = {
    "gpu": [f"model.module._target_={HERE / 'delayed.py'}:GpuDelayed", "model.inputs.x.shape=[512,1024]", "bs=64"],
    "host": [f"model.module._target_={HERE / 'delayed.py'}:HostDelayed", "model.inputs.x.shape=[1024]", "bs=8"],
}
METRICS = {"gpu": ("latency_ms", "period_ms", "gpu_busy_ms"), "host": ("latency_ms", "period_ms", "gpu_busy_ms")}
TRIALS = 5
DRAWS = 2000


def name_of(kind: str) -> str:
    return f"injected-{kind}"


def run(kind: str, rounds: int, db: str, more: list[str]) -> None:
    """A look at the unchanged model says how long a call is; then all levels, interleaved."""
    base = ["model=custom", f"model.name={kind}", "mode=eager", f"db={db}", *KINDS[kind]]
    look = effbench.sweep([*base, "protocol=quick", *more]).results().iloc[0]
    if look["status"] != "ok":
        raise SystemExit(f"{kind}: {look['status']}: {look['reason']}")
    call_us = 1000 * (look["period_ms"] if kind == "gpu" else look["latency_ms"])
    delays = ",".join(f"{call_us * level:.3f}" for level in LEVELS)
    effbench.sweep(
        [*base, f"model.module.us={delays}", f"protocol.rounds={rounds}", f"sweep.name={name_of(kind)}", *more]
    )


def trials_of(kind: str, db: str) -> list[tuple[float, list[dict]]]:
    """(injected µs, its `ok` trials), shortest delay first."""
    with Store.open(db) as store:
        sweep = store.find_sweep(name_of(kind))
        delays = {cell.key: float(cell.model["module"]["us"]) for cell in store.planned(sweep.id)}
        found: dict[float, list[dict]] = {delay: [] for delay in delays.values()}
        for trial in store.trials(sweep.id):
            if trial["status"] == "ok":
                found[delays[trial["cell_key"]]].append(trial)
    return sorted(found.items())


def rows_of(kind: str, levels: list[tuple[float, list[dict]]]) -> list[list[str]]:
    rows = []
    order = random.Random(0)
    for metric in METRICS[kind]:
        base = [trial[metric] for trial in levels[0][1] if trial[metric] is not None]
        if len(base) < 2 * TRIALS:
            continue
        spread = statistics.stdev(map(math.log, base))
        for (delay, trials), level in zip(levels, LEVELS, strict=True):
            changed = [trial[metric] for trial in trials]
            real = math.exp(statistics.fmean(map(math.log, changed)) - statistics.fmean(map(math.log, base))) - 1
            counts: Counter[str] = Counter()
            for _ in range(DRAWS):
                if delay:
                    before, after = order.sample(base, TRIALS), order.sample(changed, TRIALS)
                else:
                    drawn = order.sample(base, 2 * TRIALS)
                    before, after = drawn[:TRIALS], drawn[TRIALS:]
                counts[compare(before, after).verdict] += 1
            shares = [f"{counts[verdict] / DRAWS:.1%}" for verdict in ("slower", "faster", "same", "ambiguous")]
            rows.append([kind, metric, f"{level:.0%}", f"{real:+.2%}", f"{spread:.2%}", str(len(trials)), *shares])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=24, help="trials of each level, at least 10 (default: %(default)s)"
    )
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=list(KINDS), help="where to inject")
    parser.add_argument("--db", help="keep the sweeps there (default: a temporary database)")
    parser.add_argument("--read", action="store_true", help="run nothing: read the sweeps that --db has")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args, more = parser.parse_known_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "injected.db")
        for kind in args.kind:
            if not args.read:
                run(kind, args.rounds, db, more)
            rows += rows_of(kind, trials_of(kind, db))
    headings = ["injected", "metric", "delay", "measured", "SD", "trials", "slower", "faster", "same", "ambiguous"]
    print(tables.render(headings, rows, args.format))
    print(f"{DRAWS} comparisons of {TRIALS} against {TRIALS} trials in each row")


if __name__ == "__main__":
    main()

"""Does every cell get a figure, and how far can it be trusted, on a quiet CPU machine and on a busy
one?

    python benchmarks/busy_host.py [--protocol quick] [--bs 1] [--repeat 2] [--quiet] [--db FILE]
        [SETTING ...]

Run this on a machine without a GPU on which nothing else runs. The same sweep of five networks runs
`--repeat` times while the machine is quiet, and then, unless `--quiet` is given, once for each kind
of other program on every core: one that works for 1.1 of 2.8 seconds, and one that works all the
time. For each sweep the table counts cells, figures and marks, and compares the figures with those
of the first quiet sweep. Settings apply to every sweep.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import effbench
from effbench.store import Store

#: One sweep for each network, because they have different settings.
CELLS = (
    ("model=tiny,mlp,attention",),
    ("model=gpt2", "model.module.layers=2"),
    ("model=transformers", "model.arch=bert-base"),
)
MODES = "mode=eager,default"
#: Seconds of work and of sleep of the other programs.
LOOPS = {"at times": (1.1, 1.7), "all the time": (1.0, 0.0)}
LOOP = """
import sys, time
work_s, sleep_s = map(float, sys.argv[1:])
while True:
    until = time.monotonic() + work_s
    while time.monotonic() < until:
        sum(range(1000))
    time.sleep(sleep_s)
"""
#: A figure is right if it is this close to the one of the quiet machine.
CLOSE = 0.12
SAME_CELL = ("model", "bs", "mode")


@dataclass(frozen=True)
class Swept:
    """The results of one pass over all cells, and the numbers of trials and of marked ones."""

    frame: pd.DataFrame
    trials: int
    marked_trials: int
    wall_s: float


@contextmanager
def busy(kind: str | None) -> Iterator[None]:
    """Run a program of this kind on every core; None: on none."""
    loops = []
    if kind is not None:
        words = [str(seconds) for seconds in LOOPS[kind]]
        cores = os.sched_getaffinity(0)
        loops = [subprocess.Popen([sys.executable, "-c", LOOP, *words]) for _ in cores]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def sweep_all(db: str, protocol: str, settings: list[str]) -> Swept:
    """Sweep all cells and return what was measured."""
    frames = []
    trials = marked_trials = 0
    began = time.monotonic()
    for cells in CELLS:
        sweep = effbench.sweep(
            [*cells, MODES, f"protocol={protocol}", f"db={db}", "device=cpu", *settings]
        )
        frames.append(sweep.results())
        with Store.open(db, mode="read") as store:
            rows = store.trials(sweep.id)
        trials += len(rows)
        marked_trials += sum(row["disturbance"] is not None for row in rows)
    return Swept(
        pd.concat(frames, ignore_index=True), trials, marked_trials, time.monotonic() - began
    )


def line(name: str, swept: Swept, quiet: Swept) -> str:
    """Return a row of the table."""
    frame = swept.frame
    has_figure = frame["latency_ms"].notna()
    is_marked = frame["marked"].fillna(False).astype(bool)
    both = frame.merge(quiet.frame, on=list(SAME_CELL), suffixes=("", "_quiet"))
    ratio = both["latency_ms"] / both["latency_ms_quiet"]
    is_far = (ratio - 1).abs() > CLOSE
    both_marked = both["marked"].fillna(False).astype(bool)
    low = both[["latency_ci_low_ms", "latency_ci_low_ms_quiet"]].max(axis=1)
    high = both[["latency_ci_high_ms", "latency_ci_high_ms_quiet"]].min(axis=1)
    has_intervals = both[["latency_ci_low_ms", "latency_ci_low_ms_quiet"]].notna().all(axis=1)
    overlap = int((has_intervals & (low <= high)).sum())
    values = (
        name,
        f"{len(frame)}",
        f"{int(has_figure.sum())}",
        f"{int(is_marked.sum())}",
        f"{swept.marked_trials} of {swept.trials}",
        f"{ratio.min():.2f}–{ratio.max():.2f}",
        f"{int((is_far & ~both_marked).sum())}",
        f"{overlap} of {int(has_intervals.sum())}",
        f"{swept.wall_s:.0f} s",
    )
    return f"| {' | '.join(values)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="quick")
    parser.add_argument("--db", help="database to keep; default: a temporary one")
    parser.add_argument("--repeat", type=int, default=2, help="sweeps of the quiet machine")
    parser.add_argument("--bs", default="1", help="batch sizes")
    parser.add_argument("--quiet", action="store_true", help="only sweeps of the quiet machine")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    headings = (
        "machine",
        "cells",
        "with a figure",
        "marked",
        "marked trials",
        "figure ÷ first quiet figure",
        f"unmarked, more than {CLOSE:.0%} off",
        "intervals that overlap",
        "duration",
    )
    print(f"| {' | '.join(headings)} |")
    print(f"| --- |{' ---: |' * (len(headings) - 1)}")
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "busy.db")
        quiet = None
        kinds = [None] * args.repeat
        if not args.quiet:
            kinds += LOOPS
        for kind in kinds:
            with busy(kind):
                swept = sweep_all(db, args.protocol, [f"bs={args.bs}", *args.settings])
            quiet = quiet or swept
            name = "quiet" if kind is None else f"busy {kind}"
            print(line(name, swept, quiet), flush=True)
            bad = swept.frame[~swept.frame["status"].isin(("ok", "unsupported"))]
            for row in bad.itertuples():
                print(
                    f"{row.model} bs={row.bs} {row.mode}: {row.status}: {row.reason}",
                    file=sys.stderr,
                )


if __name__ == "__main__":
    main()

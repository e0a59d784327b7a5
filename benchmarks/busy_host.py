"""Does every cell get a figure, and how far can it be trusted, on a quiet CPU machine and on a busy
one?

    python benchmarks/busy_host.py [--protocol quick] [--bs 1] [--quiet] [--db FILE] [SETTING ...]

Run this on a machine without a GPU on which nothing else runs. Five networks are swept: while the
machine is quiet, with another program on every core that works for 1.1 of 2.8 seconds, quiet again,
and with one that works all the time. The turns follow each other for each network, because the
machine itself becomes faster and slower over an hour. The first table counts cells, figures and
marks, the second has each cell's figures. A busy figure is compared with the mean of both quiet
ones. Settings apply to every sweep.
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
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

import effbench
from effbench.store import Store

#: One sweep for each network, because they have different settings.
CELLS = (
    ("model=tiny",),
    ("model=mlp",),
    ("model=attention",),
    ("model=gpt2", "model.module.layers=2"),
    ("model=transformers", "model.arch=bert-base"),
)
MODES = "mode=eager,default"
#: Seconds of work and of sleep of the other programs.
LOOPS = {"at times": (1.1, 1.7), "all the time": (1.0, 0.0)}
#: The turns of each network, and the kind of other programs.
TURNS = {
    "quiet": None,
    "busy at times": "at times",
    "quiet again": None,
    "busy all the time": "all the time",
}
QUIET = ("quiet", "quiet again")
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
CELL = ("model", "bs", "mode")


@dataclass
class Turn:
    """What was measured in a turn of every network."""

    frames: list[pd.DataFrame] = field(default_factory=list)
    trials: int = 0
    marked_trials: int = 0
    wall_s: float = 0.0

    def results(self) -> pd.DataFrame:
        """Return a row per cell, by model, batch size and mode."""
        frame = pd.concat(self.frames, ignore_index=True).set_index(list(CELL))
        frame["marked"] = frame["marked"].fillna(False).astype(bool)
        return frame


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


def sweep(db: str, settings: list[str], turn: Turn) -> None:
    """Sweep these cells, and add what was measured to the turn."""
    began = time.monotonic()
    swept = effbench.sweep([*settings, MODES, f"db={db}", "device=cpu"])
    turn.wall_s += time.monotonic() - began
    turn.frames.append(swept.results())
    with Store.open(db, mode="read") as store:
        trials = store.trials(swept.id)
    turn.trials += len(trials)
    turn.marked_trials += sum(trial.disturbance is not None for trial in trials)


def print_counts(turns: dict[str, Turn]) -> None:
    """Print a row for each turn."""
    headings = (
        "machine",
        "cells",
        "with a figure",
        "marked",
        "marked trials",
        f"unmarked, more than {CLOSE:.0%} off",
        "intervals that overlap the quiet ones",
        "duration",
    )
    print(f"| {' | '.join(headings)} |")
    print(f"| --- |{' ---: |' * (len(headings) - 1)}")
    quiet = quiet_ms(turns)
    first = turns[QUIET[0]].results()
    for name, turn in turns.items():
        frame = turn.results()
        is_far = (frame["latency_ms"] / quiet - 1).abs() > CLOSE
        low, high = frame["latency_ci_low_ms"], frame["latency_ci_high_ms"]
        has_interval = low.notna() & first["latency_ci_low_ms"].notna()
        overlaps = (low <= first["latency_ci_high_ms"]) & (high >= first["latency_ci_low_ms"])
        values = (
            name,
            f"{len(frame)}",
            f"{frame['latency_ms'].notna().sum()}",
            f"{frame['marked'].sum()}",
            f"{turn.marked_trials} of {turn.trials}",
            f"{(is_far & ~frame['marked']).sum()}",
            f"{(overlaps & has_interval).sum()} of {has_interval.sum()}",
            f"{turn.wall_s:.0f} s",
        )
        print(f"| {' | '.join(values)} |")


def quiet_ms(turns: dict[str, Turn]) -> pd.Series:
    """Return the mean latency (ms) of the quiet turns by cell."""
    figures = [turns[name].results()["latency_ms"] for name in QUIET]
    return sum(figures) / len(figures)


def print_cells(turns: dict[str, Turn]) -> None:
    """Print a row for each cell: the quiet latency, and the ratio to it in each turn."""
    quiet = quiet_ms(turns)
    print(f"\n| cell | quiet (ms) | {' | '.join(turns)} | speedup |")
    print(f"| --- |{' ---: |' * (len(turns) + 2)}")
    frames = [turn.results() for turn in turns.values()]
    for cell in quiet.index:
        rows = [frame.loc[cell] for frame in frames]
        ratios = [shown(row["latency_ms"] / quiet[cell], row["marked"]) for row in rows]
        speedups = [shown(row["speedup"], pd.notna(row["speedup_disturbance"])) for row in rows]
        model, bs, mode = cell
        values = [f"{model} bs {bs} {mode}", f"{quiet[cell]:.4g}", *ratios, ", ".join(speedups)]
        print(f"| {' | '.join(values)} |")


def shown(ratio: float, is_marked: bool) -> str:
    return f"{'~' if is_marked else ''}{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="quick")
    parser.add_argument("--db", help="database to keep; default: a temporary one")
    parser.add_argument("--bs", default="1", help="batch sizes")
    parser.add_argument("--quiet", action="store_true", help="only the quiet turns")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    turns = {name: Turn() for name in TURNS if name in QUIET or not args.quiet}
    with tempfile.TemporaryDirectory() as folder:
        db = args.db or str(Path(folder) / "busy.db")
        for cells in CELLS:
            for name, turn in turns.items():
                settings = [*cells, f"protocol={args.protocol}", f"bs={args.bs}", *args.settings]
                with busy(TURNS[name]):
                    sweep(db, settings, turn)
    print_counts(turns)
    print_cells(turns)
    for name, turn in turns.items():
        frame = turn.results()
        for cell, row in frame[~frame["status"].isin(("ok", "unsupported"))].iterrows():
            print(f"{name}: {cell}: {row['status']}: {row['reason']}", file=sys.stderr)


if __name__ == "__main__":
    main()

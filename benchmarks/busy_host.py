"""Does every cell get a figure, and how far can it be trusted, on a quiet CPU machine and on a busy
one?

    python benchmarks/busy_host.py [--quiet] [SETTING ...]

Run this on a machine without a GPU on which nothing else runs. Five networks are swept: while the
machine is quiet, with another program on every core that works for 1.1 of 2.8 seconds, quiet again,
and with one that works all the time. The turns follow each other for each network, because the
machine itself becomes faster and slower over an hour. The first table counts cells, figures and
marks, the second has each cell's figures. A busy figure is compared with the mean of both quiet
ones. Settings apply to every sweep, such as `protocol=standard bs=1,8`.
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

import pandas as pd

import effbench
from effbench.core.table import Column, Table
from effbench.store import Store

#: One sweep for each network, because they have different settings.
NETWORKS = (
    ("model=tiny",),
    ("model=mlp",),
    ("model=attention",),
    ("model=gpt2", "model.module.layers=2"),
    ("model=transformers", "model.arch=bert-base"),
)
SETTINGS = ("mode=eager,default", "bs=1", "protocol=quick", "device=cpu")
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
COUNTS = [
    Column("machine"),
    Column("cells", numeric=True),
    Column("with a figure", numeric=True),
    Column("marked", numeric=True),
    Column("marked trials", numeric=True),
    Column("far", f"unmarked, more than {CLOSE:.0%} off", numeric=True),
    Column("intervals that overlap the quiet ones", numeric=True),
    Column("duration", numeric=True),
]


@dataclass
class Turn:
    """What was measured in a turn of every network."""

    name: str
    frames: list[pd.DataFrame] = field(default_factory=list)
    trials: int = 0
    marked_trials: int = 0
    wall_s: float = 0.0

    def sweep(self, settings: list[str]) -> None:
        """Sweep a network while the programs of this turn run."""
        began_s = time.monotonic()
        with busy(TURNS[self.name]):
            sweep = effbench.sweep(settings)
        self.wall_s += time.monotonic() - began_s
        self.frames.append(sweep.results())
        with Store.open(sweep.db, mode="read") as store:
            trials = store.trials(sweep.id)
        self.trials += len(trials)
        self.marked_trials += sum(trial.disturbance is not None for trial in trials)

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


def quiet_ms(turns: list[Turn]) -> pd.Series:
    """Return the mean latency (ms) of the quiet turns by cell."""
    figures = [turn.results()["latency_ms"] for turn in turns if turn.name in QUIET]
    return sum(figures) / len(figures)


def count_table(turns: list[Turn]) -> Table:
    """Return a row for each turn: its cells, figures and marks."""
    quiet = quiet_ms(turns)
    first = turns[0].results()
    rows = []
    for turn in turns:
        frame = turn.results()
        is_far = (frame["latency_ms"] / quiet - 1).abs() > CLOSE
        is_overlapping = overlaps(frame, first)
        row = (
            turn.name,
            len(frame),
            frame["latency_ms"].notna().sum(),
            frame["marked"].sum(),
            f"{turn.marked_trials} of {turn.trials}",
            (is_far & ~frame["marked"]).sum(),
            f"{is_overlapping.sum()} of {len(is_overlapping)}",
            f"{turn.wall_s:.0f} s",
        )
        rows.append(row)
    return Table.of(COUNTS, rows)


def overlaps(frame: pd.DataFrame, quiet: pd.DataFrame) -> pd.Series:
    """Return whether the intervals of both overlap, for the cells that have two."""
    low_ms, high_ms = frame["latency_ci_low_ms"], frame["latency_ci_high_ms"]
    quiet_low_ms, quiet_high_ms = quiet["latency_ci_low_ms"], quiet["latency_ci_high_ms"]
    has_both = low_ms.notna() & quiet_low_ms.notna()
    return ((low_ms <= quiet_high_ms) & (high_ms >= quiet_low_ms))[has_both]


def cell_table(turns: list[Turn]) -> Table:
    """Return a row for each cell: the quiet latency, the ratio to it in each turn, and speedups."""
    frames = {turn.name: turn.results() for turn in turns}
    columns = [Column("cell"), Column("quiet_ms", "quiet (ms)", numeric=True)]
    columns += [Column(name, numeric=True) for name in frames]
    columns.append(Column("speedup", numeric=True))
    rows = []
    for cell, latency_ms in quiet_ms(turns).items():
        model, bs, mode = cell
        row = {"cell": f"{model} bs {bs} {mode}", "quiet_ms": f"{latency_ms:.4g}"}
        speedups = []
        for name, frame in frames.items():
            result = frame.loc[cell]
            row[name] = ratio_text(result["latency_ms"] / latency_ms, result["marked"])
            is_marked = pd.notna(result["speedup_disturbance"])
            speedups.append(ratio_text(result["speedup"], is_marked))
        row["speedup"] = ", ".join(speedups)
        rows.append(row)
    return Table(columns, rows)


def ratio_text(ratio: float, is_marked: bool) -> str:
    if is_marked:
        return f"~{ratio:.2f}"
    return f"{ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="only the quiet turns")
    parser.add_argument("settings", nargs="*", metavar="SETTING")
    args = parser.parse_args()
    turns = [Turn(name) for name in TURNS if name in QUIET or not args.quiet]
    with tempfile.TemporaryDirectory() as folder:
        for network in NETWORKS:
            for turn in turns:
                turn.sweep([*network, *SETTINGS, f"db={folder}/busy.db", *args.settings])
    print(count_table(turns).render("markdown"))
    print(cell_table(turns).render("markdown"), end="")
    for turn in turns:
        print_failures(turn)


def print_failures(turn: Turn) -> None:
    frame = turn.results()
    has_failed = ~frame["status"].isin(("ok", "unsupported"))
    for cell, row in frame[has_failed].iterrows():
        print(f"{turn.name}: {cell}: {row['status']}: {row['reason']}", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Which slowdowns do `compare`, `check --confirm` and `history` find, how often do they cry wolf, and do others' rules?

    python benchmarks/detection.py [--runs 200] [--seed 0] [--otava PYTHON] [--quick] [--format text|markdown]

Nothing is measured here: real sweeps of unchanged cells on an H200, recorded with `record_noise.py`, are replayed.

1. As recorded: every pair of unchanged sweeps; and cells with a real delay against the same without it.
2. Two sweeps of 300 unchanged cells drawn from the recording's noise (`noise_model.py`), and in each such comparison
   one more cell that is 1, 2, 3, 5 or 10 % slower.
3. Series of 60 sweeps of that noise with a step, with a step that is undone, and without any.

All of it goes through effbench's own rules and through those of other projects (`peers_rules.py`), Otava's by an
interpreter of its own (`python -m venv otava && otava/bin/pip install apache-otava`, then `--otava otava/bin/python`).
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import detection_history as history
import detection_recorded as as_recorded
import detection_sweeps as sweeps
import noise_model
import tables
from detection_sweeps import Settings

#: Runs and cells of a look.
QUICK = (3, 30)
#: Name -> how two unchanged sweeps differ besides the recorded noise.
SCENARIOS = {
    "as recorded": Settings(),
    "0.5 % drift": Settings(drift=0.005, slow=False),
    "1 % drift": Settings(drift=0.01, slow=False),
    "launch-bound cells at 20 %": Settings(host_spread=sweeps.HOST_SPREAD, slow=False),
}
LEVELS = ", ".join(f"{100 * level:.0f}" for level in sweeps.LEVELS)


def show(title: str, headings: list[str], rows: list[list[str]], how: str) -> None:
    print(f"{title}\n\n{tables.render(headings, rows, how)}\n", flush=True)


def recorded(trials: list[dict], draws: int, seed: int, how: str) -> None:
    rows, pairs, cells = as_recorded.repeated_rows(trials)
    title = f"Recorded pairs of unchanged sweeps: {pairs} pairs, {cells} cells compared"
    show(title, ["rule", "pairs without an alarm", "cells called slower", "share"], rows, how)
    title = f"Cells with a real delay, {draws} draws of five against five trials: called slower, in %"
    show(title, *as_recorded.delayed_rows(trials, draws, seed), how)


def replayed(templates: list[noise_model.Template], runs: int, cells: int, seed: int, how: str, mapped) -> None:
    counted = {}
    for number, (name, settings) in enumerate(SCENARIOS.items()):
        chosen = Settings(cells, settings.drift, settings.host_spread, settings.slow)
        counted[name] = sweeps.simulate(templates, chosen, runs, seed + number, mapped)
    title = f"Unchanged sweeps of {cells} cells, {runs} runs each: runs without a false alarm, cells called slower"
    show(title, ["rule", *SCENARIOS], sweeps.false_alarm_rows(list(counted.values())), how)
    counts = counted["as recorded"]
    print(f"{sweeps.what_alarmed(counts)}\n")
    title = f"One slowed cell among {cells} unchanged ones, {runs} runs: found, in %, where slower by {LEVELS} %"
    show(title, ["rule", *sweeps.SLOWED], sweeps.power_rows(counts), how)
    title = "How large it is said to be: median error of the ratio, and how often its 95 % interval holds the truth"
    headings = [f"{step}, {what}" for step in sweeps.STEPS for what in ("error", "held")]
    show(title, ["slowed", *headings], sweeps.magnitude_rows(counts), how)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="of each kind (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--recording", type=Path, default=noise_model.RECORDING)
    parser.add_argument("--otava", metavar="PYTHON", help="an interpreter that has apache-otava")
    parser.add_argument("--quick", action="store_true", help=f"a look of seconds: {QUICK[0]} runs of {QUICK[1]} cells")
    parser.add_argument("--format", choices=tables.FORMATS, default="text")
    args = parser.parse_args()
    runs, cells = QUICK if args.quick else (args.runs, 300)
    _, trials = noise_model.load(args.recording)
    templates = noise_model.templates(trials)
    recorded(trials, 10 * runs, args.seed, args.format)
    with ProcessPoolExecutor(max_workers=args.jobs) as pool:
        replayed(templates, runs, cells, args.seed, args.format, pool.map)
        rows = history.rows_of(templates, runs, args.seed, args.otava, pool.map)
    title = f"Series of {history.SWEEPS} sweeps, {runs} of each: change points"
    show(title, history.HEADINGS, rows, args.format)


if __name__ == "__main__":
    main()

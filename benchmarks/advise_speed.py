"""Compare `effbench advise mode MODEL` with the full matrix in the standard protocol: is the answer the same, and how
long does each take?

    python benchmarks/advise_speed.py tiny mlp bs=8                  # on a GPU if there is one
    python benchmarks/advise_speed.py tiny mode=eager,default device=cpu protocol.host_tolerance=null

    python benchmarks/advise_speed.py timm+model.arch=vit_base_patch16_224 timm+model.arch=mobilenetv3_large_100
    python benchmarks/advise_speed.py --replay h200.db atlas

With `--replay` it measures nothing: it plays the elimination with the trials of the first compilation of these sweeps,
for each model and batch size. Both times are then those of all attempts, one after the other.

Words without an equals sign are models, with overrides of their own after `+`; all others are overrides for every
model. The order of the two sides alternates, and each measures in a database of its own. The answer is the same if the
full matrix's best mode, or one that ties with it, is advised. The times include everything that a user waits for.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from effbench.cell import Trial
from effbench.launcher.adaptive import CANDIDATES
from effbench.store import Store
from effbench.sweeping.schedule import race_of

#: Rounds of conf/protocol/advise.yaml, and what differs in a replay.
ROUNDS = 3
PLAYED = {"rounds": ROUNDS, "eliminate": "latency_ms"}


def timed(*words: str) -> tuple[str, float]:
    """Run effbench and return its output and its seconds."""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "effbench", *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"effbench {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout, time.monotonic() - start


def full(model: str, overrides: list[str], folder: Path) -> tuple[dict, float]:
    db = str(folder / f"full-{model}.db")
    modes = [] if any(word.startswith("mode=") for word in overrides) else [f"mode={CANDIDATES}"]
    _, seconds = timed("-m", f"model={model}", *modes, *overrides, f"db={db}", "on_failure=ignore")
    return json.loads(timed("advise", "mode", "--db", db, "--format", "json")[0]), seconds


def short(model: str, overrides: list[str], folder: Path) -> tuple[dict, float]:
    text, seconds = timed(
        "advise", "mode", model, *overrides, "--db", str(folder / f"short-{model}.db"), "--format", "json"
    )
    return json.loads(text), seconds


def replay(db: str, names: list[str]) -> None:
    """Print a row per model and batch size of these sweeps."""
    ratios, same = [], []
    print("| model | bs | full matrix: best, and ties | advised | slower than best | trials | time, ratio |")
    print("|---|---|---|---|---|---|---|")
    for name in names:
        with Store.open(db) as store:
            sweep = store.find_sweep(name)
            (environment,) = {row["environment_id"] for row in store.results(sweep.id)}
            history = store.history(sweep.id, environment)
            attempts = [row for row, _ in store.trials_with_samples(sweep.id, [environment])]
            cells = {cell.key: cell for cell in store.planned(sweep.id)}
        for model, bs in dict.fromkeys((cell.model_name, cell.bs) for cell in cells.values()):
            words = ("advise", "mode", "--db", db, "--sweep", name, "--model", model, "--bs", str(bs))
            matrix = json.loads(timed(*words, "--format", "json")[0])
            trials = {
                key: known for key, known in history.items() if (cells[key].model_name, cells[key].bs) == (model, bs)
            }
            chosen, used = play(trials, sweep.protocol)
            mode = cells[chosen].mode_name
            ran = {(trial.cell_key, trial.round) for trial in used}
            every = [[row for row in attempts if row["cell_key"] == key] for key in trials]
            parts = [[row for row in rows if (row["cell_key"], row["round"]) in ran] for rows in every]
            calls = {one["mode"]: one["call_ms"] for one in matrix["modes"]}
            good = [matrix["modes"][0]["mode"], *matrix["too_close_to_call"]]
            same.append(mode in good)
            ratios.append(sum(map(seconds, parts, every)) / sum(map(seconds, every, every)))
            loss = f"{100 * (calls[mode] / min(calls.values()) - 1):.1f} %" if mode in calls else "has no figure"
            counts = f"{len(used)} of {sum(map(len, trials.values()))}"
            print(
                "|",
                " | ".join([matrix["model"], str(bs), ", ".join(good), mode, loss, counts, f"{ratios[-1]:.2f}"]),
                "|",
            )
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    print(f"\nsame answer: {sum(same)} of {len(same)}; time of the advice ÷ full matrix: {mean:.2f} (geometric mean)")


def seconds(used: list[dict], every: list[dict]) -> float:
    """Return the time of these attempts of a cell. Each takes the least wall time of `every` attempt of the cell, the
    first one of a compilation that of those with a cold cache: in the sweeps, trials that prepared ahead slowed each
    other, and machines that were replaced compiled again."""
    warm_s = min(row["wall_s"] for row in every)
    cold_s = min((row["wall_s"] for row in every if row["compile_cache"] == "cold"), default=warm_s)
    compilations = len({row["compilation"] for row in used} - {None})
    return compilations * cold_s + (len(used) - compilations) * warm_s


def play(trials: dict[str, list[Trial]], protocol: dict) -> tuple[str, list[Trial]]:
    """Return the key of the cell that the elimination chooses, and the trials that it uses."""
    first = {key: [trial for trial in known if trial.compilation in (0, None)] for key, known in trials.items()}
    rounds = {key: sorted({trial.round for trial in known}) for key, known in first.items()}
    history: dict[str, list[Trial]] = {key: [] for key in first}
    state = race_of(history, protocol | PLAYED)
    for number in range(ROUNDS):
        for key in history.keys() - state.eliminated.keys():
            played = rounds[key][number : number + 1]
            history[key] += [replace(one, round=number) for one in first[key] if one.round in played]
        state = race_of(history, protocol | PLAYED)
        if state.is_over:
            break
    return state.leader, [trial for key, known in history.items() for trial in first[key][: len(known)]]


def main() -> None:
    if sys.argv[1:2] == ["--replay"]:
        return replay(sys.argv[2], sys.argv[3:])
    models = [word for word in sys.argv[1:] if "=" not in word.partition("+")[0]]
    common = [word for word in sys.argv[1:] if word not in models]
    if not models or models[0].startswith("-"):
        sys.exit(__doc__)
    ratios, same = [], 0
    print("| model | full matrix | best, and ties | advised | slower than best | trials | full s | advice s | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number, word in enumerate(models):
        model, *own = word.split("+")
        overrides = [*own, *common]
        with tempfile.TemporaryDirectory(prefix="effbench-advise-") as name:
            sides = {}
            for side in (full, short) if number % 2 else (short, full):
                sides[side] = side(model, overrides, Path(name))
        (all_of, full_s), (advice, short_s) = sides[full], sides[short]
        calls = {mode["mode"]: mode["call_ms"] for mode in all_of["modes"]}
        good = [all_of["modes"][0]["mode"], *all_of["too_close_to_call"]]
        is_same = advice["mode"] in good
        loss = calls[advice["mode"]] / min(calls.values()) - 1 if advice["mode"] in calls else math.nan
        trials = [sum(mode["trials"] for mode in answer["modes"]) for answer in (all_of, advice)]
        ratios.append(short_s / full_s)
        same += is_same
        cells = [
            word, "same" if is_same else "different", ", ".join(good), advice["mode"], f"{100 * loss:.1f} %",
            f"{trials[1]} of {trials[0]}", f"{full_s:.0f}", f"{short_s:.0f}", f"{ratios[-1]:.2f}",
        ]  # fmt: skip
        print("|", " | ".join(cells), "|", flush=True)
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    print(
        f"\nsame answer: {same} of {len(models)} models; time of the advice ÷ full matrix: {mean:.2f} (geometric mean)"
    )


if __name__ == "__main__":
    main()

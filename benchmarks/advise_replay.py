"""Is the answer of `effbench advise mode` that of the full matrix, and in what part of its time?

    python benchmarks/advise_replay.py h200.db atlas

Nothing is measured: this plays the elimination with the trials of the first compilation of recorded
sweeps, for each model and batch size. Both times are those of all attempts, one after the other.
The answer is the same if the full matrix's best mode, or one that ties with it, is advised.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from statistics import geometric_mean

from effbench.core.cell import Trial
from effbench.core.table import Column, Table
from effbench.run.rounds import race_of
from effbench.store import Store

#: Rounds of conf/protocol/advise.yaml, and what differs in a replay.
ROUNDS = 3
PLAYED = {"rounds": ROUNDS, "eliminate": "latency_ms"}


def replay(db: str, names: list[str]) -> None:
    """Print a row per model and batch size of these sweeps."""
    ratios, same, rows = [], [], []
    for name in names:
        with Store.open(db) as store:
            sweep = store.find_sweep(name)
            (environment,) = {result.environment_id for result in store.results(sweep.id)}
            history = store.history(sweep.id, environment)
            attempts = [row for row, _ in store.trials_with_samples(sweep.id, [environment])]
            cells = {cell.key: cell for cell in store.planned(sweep.id)}
        for model, bs in dict.fromkeys((cell.model_name, cell.bs) for cell in cells.values()):
            words = [
                "--db",
                db,
                "--sweep",
                name,
                "--model",
                model,
                "--bs",
                str(bs),
                "--format",
                "json",
            ]
            matrix = json.loads(
                subprocess.check_output(
                    [sys.executable, "-m", "effbench", "advise", "mode", *words]
                )
            )
            trials = {
                key: known
                for key, known in history.items()
                if (cells[key].model_name, cells[key].bs) == (model, bs)
            }
            chosen, used = play(trials, sweep.protocol)
            mode = cells[chosen].mode_name
            ran = {(trial.cell_key, trial.round) for trial in used}
            every = [[row for row in attempts if row["cell_key"] == key] for key in trials]
            parts = [
                [row for row in rows if (row["cell_key"], row["round"]) in ran] for rows in every
            ]
            calls = {one["mode"]: one["call_ms"] for one in matrix["modes"]}
            good = [matrix["modes"][0]["mode"], *matrix["too_close_to_call"]]
            same.append(mode in good)
            ratios.append(sum(map(seconds, parts, every)) / sum(map(seconds, every, every)))
            loss = (
                f"{100 * (calls[mode] / min(calls.values()) - 1):.1f} %"
                if mode in calls
                else "has no figure"
            )
            counts = f"{len(used)} of {sum(map(len, trials.values()))}"
            rows.append(
                [matrix["model"], bs, ", ".join(good), mode, loss, counts, f"{ratios[-1]:.2f}"]
            )
    headings = (
        "model",
        "bs",
        "full matrix: best, and ties",
        "advised",
        "slower than best",
        "trials",
        "time, ratio",
    )
    print(Table.of([*map(Column, headings)], rows).render("markdown"))
    mean = geometric_mean(ratios)
    print(
        f"same answer: {sum(same)} of {len(same)}; time of the advice ÷ full matrix:"
        f" {mean:.2f} (geometric mean)"
    )


def seconds(used: list[dict], every: list[dict]) -> float:
    """Return the time of these attempts of a cell. Each takes the least wall time of `every`
    attempt of the cell, the first one of a compilation that of those with a cold cache: in the
    sweeps, trials that prepared ahead slowed each other, and machines that were replaced compiled
    again."""
    warm_s = min(row["wall_s"] for row in every)
    cold_s = min((row["wall_s"] for row in every if row["compile_cache"] == "cold"), default=warm_s)
    compilations = len({row["compilation"] for row in used} - {None})
    return compilations * cold_s + (len(used) - compilations) * warm_s


def play(trials: dict[str, list[Trial]], protocol: dict) -> tuple[str, list[Trial]]:
    """Return the key of the cell that the elimination chooses, and the trials that it uses."""
    first = {
        key: [trial for trial in known if trial.compilation in (0, None)]
        for key, known in trials.items()
    }
    rounds = {key: sorted({trial.round for trial in known}) for key, known in first.items()}
    history: dict[str, list[Trial]] = {key: [] for key in first}
    state = race_of(history, protocol | PLAYED)
    for number in range(ROUNDS):
        for key in history.keys() - state.eliminated.keys():
            played = rounds[key][number : number + 1]
            history[key] += [
                replace(one, round=number) for one in first[key] if one.round in played
            ]
        state = race_of(history, protocol | PLAYED)
        if state.is_over:
            break
    return state.leader, [
        trial for key, known in history.items() for trial in first[key][: len(known)]
    ]


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    replay(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()

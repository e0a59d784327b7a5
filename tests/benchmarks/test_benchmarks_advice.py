"""The replay of `advise mode` uses fewer trials than the full matrix and finds its best mode."""

import importlib
import sys
from collections import Counter
from pathlib import Path

import pytest

from effbench.store import Store
from effbench.store.source import opened
from effbench.store.transfer import copy

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "benchmarks"))
advise_replay = importlib.import_module("advise_replay")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Batch size -> mode of each cell and trials by cell of a network of the reference."""
    path = tmp_path_factory.mktemp("advice") / "reference.db"
    with (
        Store.open(path, mode="write") as store,
        opened(str(ROOT / "results/reference/h200-sweeps.db")) as source,
    ):
        list(copy(source, store, source.sweep_ids(["atlas"])))
        sweep = store.find_sweep("last")
        (environment,) = {result.environment_id for result in store.results(sweep.id)}
        history = store.history(sweep.id, environment)
        return sweep.protocol, {cell.key: cell for cell in store.planned(sweep.id)}, history


@pytest.mark.parametrize("bs", [1, 8, 64])
def test_a_replay_chooses_the_best_mode_from_some_of_the_trials(recorded, bs):
    protocol, cells, history = recorded
    trials = {
        key: known
        for key, known in history.items()
        if (cells[key].model_name, cells[key].bs) == ("mobilenetv3_large_100", bs)
    }
    chosen, used = advise_replay.play(trials, protocol)
    assert cells[chosen].mode_name == "reduce-overhead"
    assert {trial.compilation for trial in used} == {0, None}, "None: a mode that does not compile"
    assert 4 <= len(used) <= 4 * advise_replay.ROUNDS
    numbers = Counter(trial.cell_key for trial in used)
    assert max(numbers.values()) == numbers[chosen]
    rounds = [trial.round for trial in used if trial.cell_key == chosen]
    assert rounds == [0, 2, 4][: len(rounds)], "compiles in every second"

"""Memory that does not grow with the rows."""

import tracemalloc

import pytest
import whole_sweeps as whole
from made_sweeps import a_cell, begun, trials_of

from effbench.cli import main as command_line
from effbench.store import Store


def database(path, sweeps):
    with Store.open(path, mode="write") as store:
        environment_id = store.add_environment(whole.environment(), {})
        plan = [a_cell(bs=bs + 1) for bs in range(40)]
        for number in range(sweeps):
            sweep_id = begun(store, plan, name=f"s{number}")
            for cell in plan:
                (trial,) = trials_of(cell, {}, rounds=1)
                store.record(sweep_id, environment_id, trial)
    return path


@pytest.mark.slow
def test_an_export_needs_no_more_memory_for_more_sweeps(tmp_path):
    small, large = (database(tmp_path / f"{sweeps}.db", sweeps) for sweeps in (1, 8))
    for form in ("csv", "jsonl"):
        peaks, sizes = [], []
        # the first export imports what it needs
        for number, db in enumerate((small, small, large)):
            out = tmp_path / f"{number}.{form}"
            tracemalloc.start()
            assert command_line.run(["export", "--db", str(db), "--out", str(out)]) == 0
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            sizes.append(out.stat().st_size)
        assert sizes[2] > 6 * sizes[1], form
        assert peaks[2] < 1.5 * peaks[1], form

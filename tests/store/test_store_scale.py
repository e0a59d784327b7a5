"""Memory and statements that do not grow with the rows."""

import shutil
import tracemalloc

import pytest
import sqlalchemy as sa
import whole_sweeps as whole
from made_sweeps import a_cell, begun, trials_of

from effbench.cli import main as command_line
from effbench.store import Store


def database(path, sweeps, rounds=1, cells=40):
    with Store.open(path, mode="write") as store:
        environment_id = store.add_environment(whole.environment(), {})
        plan = [a_cell(bs=bs + 1) for bs in range(cells)]
        for number in range(sweeps):
            sweep_id = begun(store, plan, name=f"s{number}", rounds=rounds)
            for trial in (trial for cell in plan for trial in trials_of(cell, {}, rounds)):
                trial.samples = {"latency_ms": [1.0] * 8}
                store.record(sweep_id, environment_id, trial)
            store.finish_sweep(sweep_id, "completed")
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


def test_an_import_needs_no_more_statements_for_more_trials(tmp_path, target):
    statements, counts = [], []

    def count(*args):
        statements.append(args[2])

    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        for rounds in (1, 5):
            source = database(tmp_path / f"{rounds}.db", 1, rounds, cells=20)
            into = shutil.copy(target, tmp_path / f"into{rounds}.db")
            statements.clear()
            (arrival,) = whole.take(source, into)
            counts.append(len(statements))
            assert arrival.added["trial"] == arrival.added["sample"] == 20 * rounds
            assert Store.check(into) == []
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    assert counts[0] == counts[1]

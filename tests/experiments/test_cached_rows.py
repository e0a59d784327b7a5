"""Which stored rows an experiment uses: those of imported and of marked sweeps come last."""

from types import SimpleNamespace

from made_sweeps import DEFAULT, EAGER, environment, sql

from effbench.experiments.run import cached_rows
from effbench.store import Store

PROTOCOL = SimpleNamespace(name="standard", rounds=5, eliminate=None)
SETTINGS = SimpleNamespace(protocol=PROTOCOL, baseline_mode="eager")
BUSY = {"disturbance": "host busy"}


def used(made, **options):
    with Store.open(made.path) as store:
        rows = cached_rows(store, [EAGER, DEFAULT], environment().id, SETTINGS, **options)
    return {row.sweep_id for row in rows}


def test_marked_cases_are_measured_again_if_that_is_possible(made):
    quiet = made.sweep([EAGER, DEFAULT])
    busy = made.sweep({EAGER: {}, DEFAULT: BUSY})
    assert used(made) == {busy}, "the newest, as after measuring on a busy host"
    assert used(made, accepts_marked=False) == {quiet}
    made.delete_sweep(quiet)
    assert used(made, accepts_marked=False) == set() and used(made) == {busy}


def test_imported_sweeps_come_last(made):
    own, imported = made.sweep([EAGER, DEFAULT]), made.sweep([EAGER, DEFAULT])
    sql(made.path, f"UPDATE sweep SET imported_at = started_at WHERE id = '{imported}'", rows=1)
    assert used(made) == {own}
    made.delete_sweep(own)
    assert used(made) == {imported}

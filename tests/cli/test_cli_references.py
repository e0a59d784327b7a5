"""How people name a sweep: by its id, name or label, or as `last`."""

import datetime as dt

import pytest
from made_sweeps import EAGER, a_cell, environment, sql

from effbench.core import folders
from effbench.render.data import newest
from effbench.store import Store
from effbench.store.sweeps import CONFIRMING

NOW = dt.datetime.now(dt.UTC)


def at(made, sweep_id, minutes=0, imported=False, **texts):
    """Change when a sweep began, in minutes from now, whether it was imported, and its texts."""
    values = {"started_at": text_of(NOW + dt.timedelta(minutes=minutes)), **texts}
    if imported:
        values["imported_at"] = text_of(NOW)
    changes = ", ".join(f"{name} = '{value}'" for name, value in values.items())
    sql(made.path, f"UPDATE sweep SET {changes} WHERE id = '{sweep_id}'", rows=1)


def text_of(time):
    return time.replace(tzinfo=None).isoformat(" ", "microseconds")


def found(made, ref):
    with Store.open(made.path) as store:
        return store.find_sweep(ref).id


@pytest.mark.parametrize("minutes", [-1, 2, 100])
def test_an_imported_sweep_is_never_last_while_there_is_another(made, minutes):
    """Whether it began later, in the near future (another clock), or in the far future."""
    own, imported = made.sweep([EAGER], name="nightly"), made.sweep([EAGER], name="nightly")
    at(made, own, -30)
    at(made, imported, minutes, imported=True)
    assert found(made, "last") == own == found(made, "nightly")
    with Store.open(made.path) as store:
        (shown,) = newest(store, store.sweeps(), str(made.path))
        assert shown.sweep.id == own, "the report"
    made.delete_sweep(own)
    assert found(made, "last") == imported


def test_the_sweep_of_another_user_is_last_only_without_one_of_this_user(made, monkeypatch):
    own = made.sweep([EAGER], host={"user": folders.current_user()})
    other = made.sweep([EAGER], host={"user": "another"})
    assert found(made, "last") == own
    monkeypatch.setattr(folders, "current_user", lambda: "another")
    assert found(made, "last") == other


def test_the_previous_sweep_was_recorded_here(made):
    own, imported, now = (made.sweep([EAGER]) for _ in range(3))
    at(made, imported, imported=True)
    here = [environment().id]
    with Store.open(made.path) as store:
        assert store.previous(store.find_sweep(now), here).id == own
    made.delete_sweep(own)
    with Store.open(made.path) as store:
        assert store.previous(store.find_sweep(now), here).id == imported


def test_a_label_names_a_sweep(made, effbench):
    first = made.sweep([EAGER], label="v1.0-3-gabcdef")
    second = made.sweep([EAGER], label="v1.1")
    made.sweep([EAGER], label="v1.0-3-gabcdef", name=f"{CONFIRMING}{first}")
    assert found(made, "v1.0-3-gabcdef") == first, "a re-run has the label, too"
    compared = effbench("compare", "v1.0-3-gabcdef", "v1.1").out
    assert f"{first} v1.0-3-gabcdef → {second} v1.1" in compared
    exported = effbench("export", "--sweep", "v1.1", "--format", "csv").out
    assert second in exported and first not in exported


def test_ids_and_names_come_before_labels(made):
    first = made.sweep([EAGER], name="v3")
    second = made.sweep([a_cell("default")], label="v3")
    assert found(made, "v3") == first
    at(made, first, name="v4", label=second[:10])
    assert found(made, second[:10]) == first, "a whole label before the start of an id"

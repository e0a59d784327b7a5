"""Verdicts of claims: every judgement is kept, the newest of each claim, experiment and machine is shown."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from effbench.errors import StoreError
from effbench.store import HEAD_REVISION, Store
from effbench.store.migrate import config


def verdict(claim="P1", said="confirmed", experiment="modes", sweep=None, **measured):
    return {
        "claim": claim, "experiment": experiment, "sweep_id": sweep, "verdict": said, "reason": "holds",
        "measured": measured,
    }  # fmt: skip


def said(store):
    return [(row["claim"], row["experiment"], row["gpu_name"], row["verdict"]) for row in store.verdicts()]


def test_the_newest_on_each_machine(store, environment):
    h200, a100 = (store.add_environment(environment(gpu_name=name), {}) for name in ("H200", "A100"))
    newer = store.add_environment(environment(gpu_name="H200", torch_version="2.14.0"), {})
    cpu = store.add_environment(environment(cpu_name="EPYC"), {})
    store.add_verdicts(h200, [verdict(said="refuted"), verdict("P2", "depends", value=1.5)])
    store.add_verdicts(a100, [verdict(said="undecided")])
    store.add_verdicts(newer, [verdict()])
    store.add_verdicts(newer, [verdict(experiment="mine", said="refuted")])
    store.add_verdicts(cpu, [verdict(said="not measurable here")])
    assert said(store) == [
        ("P2", "modes", "H200", "depends"),
        ("P1", "modes", "A100", "undecided"),
        ("P1", "modes", "H200", "confirmed"),
        ("P1", "mine", "H200", "refuted"),
        ("P1", "modes", None, "not measurable here"),
    ]
    rows = store.verdicts()
    assert rows[0]["measured"] == {"value": 1.5}
    assert rows[2]["torch_version"] == "2.14.0"
    assert rows[4]["cpu_name"] == "EPYC"
    assert rows[0]["judged_at"].tzinfo is not None


def test_nothing_to_keep(store, environment):
    store.add_verdicts(store.add_environment(environment(), {}), [])
    assert store.verdicts() == []


def test_all_or_none(store, environment, begin, cell):
    here = store.add_environment(environment(), {})
    sweep = begin(store, [cell()])
    with pytest.raises(StoreError):
        store.add_verdicts(here, [verdict(sweep=sweep), verdict("P2", sweep="nowhere")])
    with pytest.raises(StoreError):
        store.add_verdicts("nowhere", [verdict()])
    assert store.verdicts() == []
    store.add_verdicts(here, [verdict(sweep=sweep)])
    assert store.verdicts()[0]["sweep_id"] == sweep


def shape(connection):
    """Columns with whether they may be NULL, and indexes."""
    found = sa.inspect(connection)
    columns = {column["name"]: column["nullable"] for column in found.get_columns("claim_verdict")}
    return columns, {index["name"] for index in found.get_indexes("claim_verdict")}


def test_a_database_of_before_is_upgraded(path, store, environment, cell, begin):
    here, sweep = store.add_environment(environment(), {}), begin(store, [cell()])
    store.add_verdicts(here, [verdict(sweep=sweep)])
    store.close()
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        now = shape(connection)
        made = config()
        made.attributes["connection"] = connection
        command.downgrade(made, "0002")
        columns, indexes = shape(connection)
        assert (columns["sweep_id"], columns["experiment"], indexes) == (False, True, set())
        assert sa.inspect(connection).get_unique_constraints("claim_verdict")
    engine.dispose()
    assert Store.upgrade(path) == ("0002", HEAD_REVISION)
    with engine.connect() as connection:
        columns, indexes = shape(connection)
        assert (columns, indexes) == now
        assert (columns["sweep_id"], columns["experiment"]) == (True, False)
        assert indexes == {"ix_claim_verdict_claim"}
        assert not sa.inspect(connection).get_unique_constraints("claim_verdict")
    engine.dispose()
    with Store.open(path, mode="write") as store:
        assert store.verdicts() == []
        store.add_verdicts(here, [verdict(sweep=sweep), verdict()])
        assert len(store.sweeps()) == 1
    assert Store.check(path) == []

"""Ceilings and noise of a machine, and databases of before they were kept."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from alembic import command

from effbench.cell import Status, Trial
from effbench.errors import SchemaError, StoreError
from effbench.store import HEAD_REVISION, Store
from effbench.store.migrate import config

CEILINGS = {"copy_bytes_per_s": 4e12, "flops_per_s": {"bfloat16": 7e14}}


def test_the_newest_of_each_counts(store, environment):
    here = store.add_environment(environment(), {})
    assert store.calibration(here) is None
    store.add_calibration(here, "GPU-1", ceilings={"copy_bytes_per_s": 1.0})
    store.add_calibration(here, "GPU-2", ceilings=CEILINGS)
    store.add_calibration(here, None, noise={"trials": 5})
    found = store.calibration(here)
    assert (found["ceilings"], found["noise"], found["gpu_uuid"]) == (CEILINGS, {"trials": 5}, None)
    assert found["measured_at"].tzinfo is not None
    other = store.add_environment(environment(torch_version="2.11.0"), {})
    assert store.calibration(other) is None


def test_of_an_unknown_environment_it_is_refused(store):
    with pytest.raises(StoreError):
        store.add_calibration("nowhere", None, ceilings=CEILINGS)


def test_a_database_of_the_revision_before_is_upgraded_with_its_results(path, cell, environment, begin):
    """What the trials held all along appears in the columns that are new."""
    with Store.open(path, mode="write") as store:
        one = cell()
        sweep, here = begin(store, [one]), store.add_environment(environment(), {})
        for round, period in enumerate((1.0, 1.1, 1.2)):
            store.record(sweep, here, Trial(one.key, round, Status.OK, latency_ms=2.0, period_ms=period, steady=False))
        (now,) = store.results(sweep)
    assert now["period_ci_low_ms"] < now["period_ms"] < now["period_ci_high_ms"]
    assert now["unsteady_trials"] == 3
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        made = config()
        made.attributes["connection"] = connection
        command.downgrade(made, "0001")
        columns = set(connection.exec_driver_sql("SELECT * FROM results").keys())
    engine.dispose()
    assert "period_ci_low_ms" not in columns
    assert "kernels" in columns
    with pytest.raises(SchemaError, match="effbench db upgrade"):
        Store.open(path)
    assert Store.upgrade(path) == ("0001", HEAD_REVISION)
    with Store.open(path) as store:
        (again,) = store.results(sweep)
    assert again == now
    assert Store.check(path) == []


def test_history_has_the_last_try_of_each_round(store, cell, environment, begin):
    one, other = cell(), cell("default")
    sweep, here = begin(store, [one, other]), store.add_environment(environment(), {})
    for round, attempt, status in ((0, 0, Status.NOISY), (0, 1, Status.OK), (1, 0, Status.OK)):
        store.record(sweep, here, Trial(one.key, round, status, attempt=attempt, latency_ms=1.0))
    found = store.history(sweep, here)
    assert [(trial.round, trial.attempt) for trial in found[one.key]] == [(0, 1), (1, 0)]
    assert other.key not in found

"""A real PostgreSQL server: everything that a database is asked for, and whole sweeps from and to
it."""

import concurrent.futures

import psycopg
import pytest
import whole_sweeps as whole
from whole_sweeps import outcomes

from effbench.store import Store, transfer
from effbench.store.source import opened
from effbench.store.transfer import copy
from effbench.store.trials import rebuild_results


def test_whole_sweeps_there_and_back(odd, postgres, tmp_path):
    """Whatever the administrator has set."""
    odd_settings = (
        "TimeZone = 'Asia/Kolkata'; DateStyle = German; client_encoding = LATIN1;"
        " extra_float_digits = 0"
    )
    with psycopg.connect(postgres, autocommit=True) as admin:
        for setting in odd_settings.split("; "):
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET {setting}")
    assert outcomes(odd, postgres, baselines=True) == ["imported"] * 3
    assert whole.contents(postgres) == whole.contents(odd)
    assert Store.check(postgres) == []
    assert outcomes(odd, postgres, baselines=True) == ["already there"] * 3
    for number, source in enumerate((postgres, whole.export(postgres, tmp_path / "x.db"))):
        back = tmp_path / f"back{number}.db"
        assert outcomes(source, back, baselines=True) == ["imported"] * 3
        assert whole.contents(back) == whole.contents(odd)


def test_an_import_whose_connection_breaks_begins_again(odd, postgres, monkeypatch):
    broken = []

    def rebuild(connection, *arguments, **more):
        if not broken:
            broken.append(connection.connection.driver_connection.info.backend_pid)
            with psycopg.connect(postgres, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", broken)
        rebuild_results(connection, *arguments, **more)

    monkeypatch.setattr(transfer, "rebuild_results", rebuild)
    with opened(str(odd)) as source, Store.open(postgres, mode="write") as store:
        arrivals = list(copy(source, store, source.sweep_ids(), baselines=True))
    assert broken and {arrival.outcome for arrival in arrivals} == {"imported"}
    trials = sum(arrival.added["trial"] for arrival in arrivals)
    assert trials == len(whole.contents(odd)["trial"])
    assert whole.contents(postgres) == whole.contents(odd)


@pytest.fixture
def meanwhile(postgres):
    """Start a function in a thread and wait until it ends, or waits for a lock; its result is that
    of `.result()`."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname ="
        " current_database()"
    )
    with (
        concurrent.futures.ThreadPoolExecutor() as pool,
        psycopg.connect(postgres, autocommit=True) as admin,
    ):

        def start(function, *arguments, **options):
            future = pool.submit(function, *arguments, **options)
            while not future.done() and admin.execute(query).fetchone() == (0,):
                pass
            return future

        yield start


def test_of_two_imports_at_once_the_second_waits(odd, postgres, meanwhile, monkeypatch):
    with Store.open(postgres, mode="write") as store:
        whole.sweep(store)  # its cells and environments are there
    with Store.open(odd) as store:
        first, second, empty = whole.ids_of(store)
    others, found = [], []

    def rebuild(*arguments, **more):
        if others:
            found.append(meanwhile(outcomes, odd, postgres, sweeps=[others.pop()]))
        rebuild_results(*arguments, **more)

    monkeypatch.setattr(transfer, "rebuild_results", rebuild)
    for one, other, outcome in ((first, second, "imported"), (empty, empty, "already there")):
        others.append(other)
        assert outcomes(odd, postgres, sweeps=[one]) == ["imported"]
        assert found.pop().result() == [outcome]
    assert [len(whole.contents(postgres)[table]) for table in ("calibration", "claim_verdict")] == [
        2,
        1,
    ]
    assert Store.check(postgres) == []

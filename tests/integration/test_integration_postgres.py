"""A real PostgreSQL server: everything that a database is asked for, and whole sweeps from and to
it."""

import concurrent.futures
from pathlib import Path

import psycopg
import pytest
import whole_sweeps as whole
from made_sweeps import faults
from older_schemas import AFTER_0006, AFTER_0010, lower_to
from postgres_server import PASSWORD
from whole_sweeps import outcomes

from effbench.core.cell import Status, Trial
from effbench.core.errors import SchemaError
from effbench.store import Store, maintenance, transfer
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
    assert outcomes(odd, postgres) == ["imported"] * 3
    assert whole.contents(postgres) == whole.contents(odd)
    back = tmp_path / "back.db"
    assert outcomes(postgres, back) == ["imported"] * 3
    assert whole.contents(back) == whole.contents(odd)


def test_a_database_of_an_earlier_version_is_copied(odd, postgres, tmp_path):
    whole.take(odd, postgres)
    lower_to(postgres, "0006", f"{AFTER_0010} {AFTER_0006}")
    with pytest.raises(SchemaError, match="import OLD_URL --db NEW_URL"):
        maintenance.upgrade(postgres)
    new = tmp_path / "new.db"
    assert outcomes(postgres, new) == ["imported"] * 3
    assert faults(new) == []


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
    others, waiting = [], []

    def import_one(sweep):
        (arrival,) = whole.take(odd, postgres, sweeps=[sweep])
        return arrival.outcome

    def rebuild(*arguments, **more):
        if others:
            waiting.append(meanwhile(import_one, others.pop()))
        rebuild_results(*arguments, **more)

    monkeypatch.setattr(transfer, "rebuild_results", rebuild)
    for one, other, outcome in ((first, second, "imported"), (empty, empty, "already there")):
        others.append(other)
        assert import_one(one) == "imported"
        assert waiting.pop().result() == outcome
    assert len(whole.contents(postgres)["claim_verdict"]) == 1


def test_a_sweep_is_exported_as_of_one_moment(postgres, tmp_path):
    """Trials that end while it is copied are not in it."""
    with Store.open(postgres, mode="write") as store:
        sweep_id = whole.sweep(store, rounds=1)
        environment_id = store.add_environment(whole.environment(), {})
        before = store.find_sweep(sweep_id).trials
        with opened(postgres) as source, Store.open(tmp_path / "x.db", mode="write") as other:
            ids = source.sweep_ids()
            store.add_trial(sweep_id, environment_id, Trial(whole.cells()[0].key, 9, Status.OK))
            (arrival,) = copy(source, other, ids)
        assert (arrival.trials, store.find_sweep(sweep_id).trials) == (before, before + 1)


def test_no_command_shows_the_password_of_a_server(own_postgres, tmp_path, monkeypatch, effbench):
    monkeypatch.chdir(tmp_path)
    with Store.open(own_postgres, mode="write") as store:
        whole.sweep(store)
        whole.sweep(store)
    said = ""
    for command in (
        "ls",
        "show --why",
        "compare last last",
        "baseline set main last",
        "check --baseline main",
        "history",
        "claims",
        "report --out site",
        "export --out x.csv",
        "export --out x.db",
        "import x.db",
        "duet mode=eager mode=no-such-mode model=tiny",
        "reproduce no-such-experiment",
        "doctor --no-such-option",
    ):
        done = effbench(*command.split(), "--db", own_postgres)
        said += f"{command}: {done.code}\n{done.out}{done.err}"
    done = effbench("import", own_postgres, "--db", own_postgres)
    said += done.out + done.err
    assert "already there" in said and "://me:***@" in said
    assert PASSWORD not in said
    written = [path for path in Path().rglob("*") if path.is_file()]
    assert {"x.db", "x.csv"} <= {path.name for path in written}
    assert [path for path in written if PASSWORD.encode() in path.read_bytes()] == []

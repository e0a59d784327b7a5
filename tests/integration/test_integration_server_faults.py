"""A PostgreSQL server that restarts, cuts connections or goes away: no trial is lost, none is
recorded twice."""

import threading
import time

import psycopg
import sqlalchemy as sa
import whole_sweeps as whole
from made_sweeps import a_cell, begun, environment
from postgres_server import PASSWORD

from effbench.core.cell import Status, Trial
from effbench.store import Store, connect


def test_a_connection_that_ends_before_a_commit(own_postgres):
    """Each transaction of a sweep is repeated: nothing is lost, nothing is there twice."""
    cell = a_cell()
    ended = []
    with (
        psycopg.connect(own_postgres, autocommit=True) as admin,
        Store.open(own_postgres, mode="write") as store,
    ):

        def end(connection):
            if len(ended) % 2 == 0:  # the next commit succeeds
                pid = connection.connection.driver_connection.info.backend_pid
                admin.execute("SELECT pg_terminate_backend(%s)", [pid])
            ended.append(connection)

        here = store.add_environment(environment(), {})
        sa.event.listen(store._engine, "commit", end)
        sweep = begun(store, [cell])
        store.add_trial(sweep, here, Trial(cell.key, 0, Status.OK, samples={"x": [1.0]}))
        store.finish_sweep(sweep, "completed")
    assert len(ended) == 2 * 3
    with Store.open(own_postgres) as store:
        (info,) = store.sweeps()
        assert (info.id, info.state, info.trials, info.cells) == (sweep, "completed", 1, 1)
        assert [list(store.samples(row.id)) for row in store.trials(sweep)] == [["x"]]


def test_a_lock_that_lasts_longer_than_the_servers_timeout_is_waited_for(own_postgres):
    cell = a_cell()
    with Store.open(own_postgres + "?options=-c%20lock_timeout%3D10", mode="write") as store:
        sweep, here = begun(store, [cell]), store.add_environment(environment(), {})
        with psycopg.connect(own_postgres) as other:
            other.execute("SELECT FROM sweep FOR UPDATE")
            threading.Timer(0.1, other.rollback).start()
            store.add_trial(sweep, here, Trial(cell.key, 0, Status.OK))
        assert store.find_sweep(sweep).trials == 1


SWEEP = ("model=tiny", "bs=1,2", "mode=eager", "protocol.rounds=2")


def after_first_trial(url, action):
    """Start a thread that acts once a trial is recorded."""

    def wait():
        with Store.open(url) as store:
            while not any(sweep.trials for sweep in store.sweeps()):
                time.sleep(0.02)
        action()

    Store.open(url, mode="write").close()
    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_server_that_restarts_in_mid_sweep(cli, own_server, own_postgres):
    def restart():
        own_server.stop()
        time.sleep(1.0)
        own_server.start()

    thread = after_first_trial(own_postgres, restart)
    done = cli.sweep(f"db={own_postgres}", *SWEEP)
    thread.join()
    assert done.code == 0, done.err
    assert done.err.count("waiting for postgresql://me:***@") == 1
    assert PASSWORD not in done.out + done.err + str(whole.contents(own_postgres))
    with Store.open(own_postgres) as store:
        (info,) = store.sweeps()
        assert (info.state, info.trials, info.statuses) == ("completed", 4, {"ok": 2})


def test_a_server_that_does_not_come_back(cli, own_server, own_postgres, monkeypatch):
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 1.0)
    thread = after_first_trial(own_postgres, lambda: own_server.stop("immediate"))
    done = cli.sweep(f"db={own_postgres}", *SWEEP)
    thread.join()
    assert done.code == 2
    last = [line for line in done.err.splitlines() if "waiting" not in line][-2:]
    assert (
        "was not reachable for 1 s" in last[0] and "Continue with: effbench -m resume=" in last[1]
    )
    assert PASSWORD not in done.err
    own_server.start()
    done = cli.sweep(f"db={own_postgres}", "resume=last")
    assert done.code == 0, done.err
    with Store.open(own_postgres) as store:
        (info,) = store.sweeps()
        assert (info.state, info.trials) == ("completed", 4)

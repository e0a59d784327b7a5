"""A PostgreSQL server that goes away: the sweep ends, no trial is lost, none is recorded twice."""

import threading
import time

from postgres_server import PASSWORD

from effbench.store import Store

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


def test_a_sweep_whose_server_goes_away_is_resumed(cli, own_server, own_postgres):
    thread = after_first_trial(own_postgres, lambda: own_server.stop("immediate"))
    done = cli.sweep(f"db={own_postgres}", *SWEEP)
    thread.join()
    assert done.code == 2
    assert "Continue with: effbench -m resume=" in done.err
    assert PASSWORD not in done.err
    own_server.start()
    done = cli.sweep(f"db={own_postgres}", "resume=last")
    assert done.code == 0, done.err
    with Store.open(own_postgres) as store:
        (info,) = store.sweeps()
        assert (info.state, info.trials) == ("completed", 4)

"""A PostgreSQL server that restarts, cuts connections or goes away: no trial is lost, none is
recorded twice."""

import select
import socket
import socketserver
import threading
import time
from contextlib import suppress

import whole_sweeps as whole
from made_sweeps import a_cell, begun, environment
from postgres_server import PASSWORD

from effbench.cell import Status, Trial
from effbench.store import Store, connect


class Relay(socketserver.ThreadingTCPServer):
    """A relay to a server. It breaks one connection at its next COMMIT, before the server gets
    it."""

    breaks = False

    def __init__(self, target: int) -> None:
        self.target = target
        super().__init__(("127.0.0.1", 0), Forward)
        self.port = self.server_address[1]


class Forward(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        relay = self.server
        with socket.create_connection(("127.0.0.1", relay.target)) as server, suppress(OSError):
            while True:
                for end in select.select([self.request, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    if relay.breaks and b"COMMIT" in data:
                        relay.breaks = False
                        return
                    (server if end is self.request else self.request).sendall(data)


def test_a_connection_that_breaks_before_a_commit(own_server, own_postgres):
    cells = [a_cell(), a_cell("default")]
    with Relay(own_server.port) as relay:
        threading.Thread(target=relay.serve_forever, daemon=True).start()
        with Store.open(
            own_postgres.replace(str(own_server.port), str(relay.port)), mode="write"
        ) as store:
            here = store.add_environment(environment(), {})
            relay.breaks = True
            sweep = begun(store, cells)
            assert not relay.breaks
            for number, cell in enumerate(cells):
                relay.breaks = True
                store.record(
                    sweep,
                    here,
                    Trial(cell.key, 0, Status.OK, latency_ms=number + 1.0, samples={"x": [1.0]}),
                )
                assert not relay.breaks
            relay.breaks = True
            store.finish_sweep(sweep, "completed")
        relay.shutdown()
    with Store.open(own_postgres) as store:
        (info,) = store.sweeps()
        assert (info.id, info.state, info.trials, info.cells) == (sweep, "completed", 2, 2)
        assert [list(store.samples(row["id"])) for row in store.trials(sweep)] == [["x"]] * 2
    assert Store.check(own_postgres) == []


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
    assert Store.check(own_postgres) == []


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
    assert Store.check(own_postgres) == []

"""A real PostgreSQL server: everything that a database is asked for, and whole sweeps from and to it.

A cluster of its own, in a folder of its own, gone with the tests. It fails without an installed PostgreSQL, as these
tests are worth nothing where they are skipped.
"""

import concurrent.futures
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

import psycopg
import pytest
import whole_sweeps as whole
from whole_sweeps import outcomes

from effbench import cli as command_line
from effbench.cell import Status, Trial
from effbench.errors import StoreError
from effbench.store import Store
from effbench.store.source import opened
from effbench.store.transfer import copy

PASSWORD = "s3cret"


def programs() -> Path:
    """Where PostgreSQL's programs are: Debian keeps them off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    assert installed or on_path, "these tests need a PostgreSQL server: apt-get install postgresql"
    return installed[-1].parent if installed else Path(on_path).parent


@pytest.fixture(scope="module")
def server():
    """The URL of a server, with {} for the database."""
    # PostgreSQL refuses to run as root; its package brings a user for it
    user = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="effbench-postgres-"))

    def run(program, *words):
        subprocess.run(
            [programs() / program, "-D", "data", *words], cwd=folder, check=True, capture_output=True, **user
        )

    try:
        (folder / "password").write_text(PASSWORD)
        if user:
            for path in (folder, folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        run("initdb", "-U", "me", "-A", "scram-sha-256", "--pwfile=password", "-E", "UTF8", "--no-sync", "--locale=C")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        run("pg_ctl", "start", "--wait", "-l", "log", "-o", options)
        yield f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/{{}}"
    finally:
        if (folder / "data" / "postmaster.pid").exists():
            run("pg_ctl", "stop", "--mode=fast")  # without waiting for clients
        shutil.rmtree(folder)


@pytest.fixture
def postgres(server, request):
    """The URL of an empty database."""
    name = f"test_{abs(hash(request.node.name))}"
    with psycopg.connect(server.format("postgres"), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return server.format(name)


def test_recorded_there_as_in_sqlite(postgres, tmp_path):
    """The same sweep, trial by trial, gives the same rows of every reader."""

    def recorded(url):
        with Store.open(url, mode="write") as store:
            sweep_id = whole.sweep(store, "same", seed=3)
            whole.decide(store, sweep_id)
            environment_id = whole.environment().id
            history = store.history(sweep_id, environment_id)
            later = store.find_sweep("same").started_at + whole.dt.timedelta(days=1)
            return (
                [{**row, "sweep_id": "", "started_at": ""} for row in store.results(sweep_id)],
                [str(kind) for kind in store.results_frame(sweep_id).dtypes],
                {**vars(store.find_sweep("same")), "id": "", "started_at": "", "finished_at": ""},
                store.planned(sweep_id),
                {key: [trial.to_json() for trial in trials] for key, trials in history.items()},
                store.levels(sweep_id, [environment_id], later, ["latency_ms"], None),
                store.levels(sweep_id, [environment_id], later, ["latency_ms"], "elsewhere"),
                {**store.calibration(environment_id), "measured_at": None},
                [row["verdict"] for row in store.verdicts()],
                [{name: values.tobytes() for name, values in store.samples(row["id"]).items()}
                 for row in store.trials(sweep_id)],
            )  # fmt: skip

    for here, there in zip(recorded(postgres), recorded(tmp_path / "x.db"), strict=True):
        assert here == there
    assert Store.check(postgres) == []
    assert Store.upgrade(postgres)[0] == Store.upgrade(postgres)[1]
    with Store.open(postgres, mode="write") as store:
        sweep_id, key = store.find_sweep("same").id, whole.cells()[0].key
        for cell, said in ((key, "already recorded"), ("0" * 64, "not planned")):
            with pytest.raises(StoreError, match=said):
                store.record(sweep_id, whole.environment().id, Trial(cell, 0, Status.OK))


def test_whole_sweeps_there_and_back(odd, postgres, tmp_path):
    assert outcomes(odd, postgres, baselines=True) == ["imported"] * 3
    assert whole.contents(postgres) == whole.contents(odd)
    assert Store.check(postgres) == []
    assert outcomes(odd, postgres, baselines=True) == ["already there"] * 3
    for number, source in enumerate((postgres, whole.export(postgres, tmp_path / "x.db"))):
        back = tmp_path / f"back{number}.db"
        assert outcomes(source, back, baselines=True) == ["imported"] * 3
        assert whole.contents(back) == whole.contents(odd)


def test_several_machines_at_once(odd, postgres, tmp_path):
    """All import the same and something of their own: each sweep once, no one waits for ever."""
    own = []
    for number in range(3):
        path = shutil.copy(odd, tmp_path / f"{number}.db")
        with Store.open(path, mode="write") as store:
            own.append(whole.sweep(store, f"own {number}", seed=number))
    Store.open(postgres, mode="write").close()
    together = threading.Barrier(3)

    def run(number):
        together.wait()
        return outcomes(tmp_path / f"{number}.db", postgres, baselines=True)

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, range(3)))
    assert sorted(outcome for outcomes in found for outcome in outcomes) == ["already there"] * 6 + ["imported"] * 6
    with Store.open(postgres) as store:
        assert {sweep.id for sweep in store.sweeps()} >= set(own)
    assert Store.check(postgres) == []


def test_a_sweep_is_exported_as_of_one_moment(postgres, tmp_path):
    """Trials that end while it is copied are not in it."""
    with Store.open(postgres, mode="write") as store:
        sweep_id = whole.sweep(store, rounds=1)
        environment_id = store.add_environment(whole.environment(), {})
        before = store.find_sweep(sweep_id).trials
        with opened(postgres) as source, Store.open(tmp_path / "x.db", mode="write") as other:
            ids = source.sweep_ids()
            store.record(sweep_id, environment_id, Trial(whole.cells()[0].key, 9, Status.OK))
            (arrival,) = copy(source, other, ids)
        assert (arrival.added["trial"], store.find_sweep(sweep_id).trials) == (before, before + 1)


def test_by_command_and_the_password_stays_here(odd, postgres, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command_line.run(["import", str(odd), "--db", postgres]) == 0
    assert command_line.run(["import", postgres, "--db", "back.db"]) == 0
    assert command_line.run(["export", "--db", postgres, "--out", "x.db"]) == 0
    assert command_line.run(["import", postgres, "--db", postgres]) == 0, "into itself: nothing is missing"
    assert command_line.run(["import", "x.db", "--db", postgres.replace(PASSWORD, "wr0ng")]) == 2
    said = capsys.readouterr()
    assert "3 sweeps: 3 imported · database postgresql://me:***@127.0.0.1" in said.out
    assert "cannot be reached" in said.err
    assert not any(word in said.out + said.err + Path("x.db").read_text("latin-1") for word in (PASSWORD, "wr0ng"))
    assert whole.contents("back.db")["trial"] == whole.contents(odd)["trial"]

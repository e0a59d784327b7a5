"""A real PostgreSQL server in a folder of its own, gone with the tests; and databases on it, or on
a given server."""

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

import pytest

PASSWORD = "s3cret"


class Server:
    """A server that tests may stop."""

    def __init__(self) -> None:
        # Debian keeps PostgreSQL's programs off the PATH
        installed = sorted(
            Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3])
        )
        on_path = shutil.which("initdb")
        assert installed or on_path, (
            "these tests need a PostgreSQL server: apt-get install postgresql"
        )
        self.programs = installed[-1].parent if installed else Path(on_path).parent
        # PostgreSQL refuses to run as root; its package brings a user for it
        self.user = (
            {"user": "postgres", "group": "postgres", "extra_groups": []}
            if os.geteuid() == 0
            else {}
        )
        self.folder = Path(tempfile.mkdtemp(prefix="effbench-postgres-"))
        (self.folder / "password").write_text(PASSWORD)
        if self.user:
            for path in (self.folder, self.folder / "password"):
                shutil.chown(path, "postgres", "postgres")
        new = (
            "-U",
            "me",
            "-A",
            "scram-sha-256",
            "--pwfile=password",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C",
        )
        self.run("initdb", *new)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"postgresql://me:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def run(self, program: str, *words: str) -> None:
        subprocess.run(
            [self.programs / program, "-D", "data", *words],
            cwd=self.folder,
            check=True,
            capture_output=True,
            **self.user,
        )

    def start(self) -> None:
        own = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.folder,
        }
        settings = {**own, "fsync": "off", "max_connections": 50}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self.run("pg_ctl", "start", "--wait", "-l", "log", "-o", options)

    def stop(self, mode: str = "fast") -> None:
        if self.is_running():
            self.run("pg_ctl", "stop", f"--mode={mode}")  # without waiting for clients

    def is_running(self) -> bool:
        return (self.folder / "data" / "postmaster.pid").exists()


@pytest.fixture(scope="session")
def own_server():
    server = Server()
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(server.folder)


@pytest.fixture(scope="session")
def postgres_url(request):
    """The URL of the server of `TEST_DB_URL`, or else of one of our own."""
    return os.environ.get("TEST_DB_URL") or request.getfixturevalue("own_server").url


@pytest.fixture
def postgres(postgres_url):
    """The URL of an empty database."""
    yield from empty_database(postgres_url)


@pytest.fixture
def own_postgres(own_server):
    """The URL of an empty database on a server that the test may stop."""
    database = empty_database(own_server.url)
    yield next(database)
    if not own_server.is_running():
        own_server.start()
    next(database, None)


def empty_database(server, template="template1"):
    """Yield the URL of a copy of this template, by default of an empty database."""
    import psycopg  # here, so that the tests on a GPU run without it

    name = f"effbench_test_{uuid.uuid4().hex[:12]}"
    base, _, options = server.replace("+psycopg", "", 1).partition("?")
    with psycopg.connect(f"{base}?{options}", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    yield f"{base.rpartition('/')[0]}/{name}" + (f"?{options}" if options else "")
    with psycopg.connect(f"{base}?{options}", autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')

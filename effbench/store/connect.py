"""Open a database by its URL, and turn its errors into messages of one or two lines.

SQLite connections are made here, not from SQLAlchemy's URL: a reader must never create a file, a
database in a read-only folder must be readable, and Python's own transaction handling must not
interfere.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Self, TypeAlias

import sqlalchemy as sa
from sqlalchemy import Connection, exc

from effbench.core.errors import SchemaError, StoreError
from effbench.core.folders import expand_user
from effbench.core.outputs import create_folder
from effbench.core.settings import db_option, db_setting
from effbench.store import schema
from effbench.store.schema import HEAD_REVISION, REVISIONS
from effbench.store.secrets import masked_url
from effbench.store.values import dump_json

#: A URL, or the path of a SQLite file.
DatabaseUrl: TypeAlias = str | os.PathLike[str]
ELSEWHERE = "choose another database (db=URL for a sweep, --db URL for a command)"
#: How long a locked SQLite file, or a PostgreSQL server that was reached before, is waited for.
BUSY_TIMEOUT_S = 30.0
POLL_S = 0.2
#: A closed connection, a deadlock and a lock pass at once: no message before this time.
SILENT_S = 0.5
#: What messages call the database of an engine.
NAME_OPTION = "effbench_name"
#: Dialect -> the first statement of a transaction that reads: all its queries see the same state.
_BEGIN_READING = {
    "sqlite": "BEGIN",
    "postgresql": "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
}
#: Dialect -> the first statement of one that writes. In SQLite it waits for the write lock; a
#: deferred transaction that begins to write would fail instead.
_BEGIN_WRITING = {
    "sqlite": "BEGIN IMMEDIATE",
    "postgresql": "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
}
#: SQLSTATE of errors after which a second attempt may succeed: connection exception, operator
#: intervention (shutdown, crash), serialization failure, deadlock, lock timeout.
_LOST = ("08", "57P", "40001", "40P01", "55P03")
#: Options of libpq: a connection to a machine that was switched off does not hang for hours, and a
#: database may have other settings, with which psycopg fails to read dates and text, or PostgreSQL
#: rounds floats.
_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "tcp_user_timeout": 30_000,
    "client_encoding": "UTF8",
    "options": "-c DateStyle=ISO -c extra_float_digits=1",
}
_FORMS = "give a path, sqlite:///PATH or postgresql://USER@HOST/NAME"
#: Pattern of SQLite's errors if it cannot create the index of a log: then no other process can have
#: the database open.
_NO_INDEX = "unable to open|read-?only|disk i/o|disk is full"
#: Pattern of a database's errors -> the explanation for the user.
_EXPLANATIONS = {
    "malformed|no such |unsupported file format|not a database|file is encrypted|codec": (
        "is damaged, or not a database; restore a copy"
    ),
    "readonly|read-only": f"cannot be written; check its permissions or {ELSEWHERE}",
    "locked": "stayed locked by another process; try again when that process has ended",
    "unable to open": "cannot be opened; check the permissions of the file and its folder",
    "disk i/o|disk is full": "failed: the disk is full or damaged; free some space",
}


class ValueRefusedError(StoreError):
    """The database does not take a value."""


class EmptyError(StoreError):
    """The database has no tables yet."""


def parse_url(url: DatabaseUrl) -> sa.URL:
    """Return `url` as a SQLAlchemy URL; a plain path means a SQLite file. Raises StoreError for an
    unusable URL, ConfigError for an unknown home folder."""
    given = os.fspath(url)
    if "://" not in given:
        return _url_of_path(given)
    shown = masked_url(given)
    try:
        parsed = sa.make_url(given)
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(f"not a database URL: {shown}; {_FORMS}") from error
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.host or "?" in given or parsed.database in (None, "", ":memory:"):
            form = "sqlite:///PATH of a file, without host and ?; an absolute path has four slashes"
            raise StoreError(f"{shown}: expected {form}")
        return parsed
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(f"unknown database {parsed.drivername!r} in {shown}; {_FORMS}")
    if "@" in (parsed.host or ""):
        raise StoreError(f"{shown}: the user name or password contains @; write it as %40")
    return parsed.set(drivername="postgresql+psycopg")


def _url_of_path(path: str) -> sa.URL:
    """Return the URL of a SQLite file. Raises StoreError for what seems to be a misspelt URL,
    ConfigError for an unknown home folder."""
    if re.match(r"(sqlite|postgres\w*)(\+\w+)?:?/", path) or "password=" in path:
        raise StoreError(
            f"not a database URL (it is not shown, for it may hold a password); {_FORMS}"
        )
    return sa.URL.create("sqlite", database=expand_user(path, "db"))


def sqlite_file(url: DatabaseUrl) -> Path | None:
    """Return the file of a SQLite database, None for one on a server. Raises StoreError for an
    unusable URL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        return None
    return Path(parsed.database or "")


def folder_of(url: DatabaseUrl) -> Path:
    """Return the folder of the logs: the folder of a SQLite file, else `results`."""
    file = sqlite_file(url)
    return file.parent if file else Path("results")


def describe(url: DatabaseUrl) -> str:
    """Return the database's name for messages: its path, or its URL without the password. Raises
    StoreError for an unusable URL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed.database or ""
    return masked_url(parsed.set(drivername="postgresql").render_as_string(hide_password=True))


def name_of(connection: Connection) -> str:
    """Return what messages call the database."""
    return str(connection.engine.get_execution_options()[NAME_OPTION])


class Database:
    """An open database: its transactions, with short messages for its errors.

    It belongs to one process: open it after a fork. Its methods may be called from any thread.
    """

    def __init__(
        self,
        url: DatabaseUrl,
        *,
        write: bool = False,
        create: bool = False,
        name: str | None = None,
    ) -> None:
        """Connect once. `create`: create a missing SQLite file and its folder. `name`: what
        messages call the database."""
        self.name = name or describe(url)
        self.is_writable = write
        self._lock = threading.Lock()
        self._file = sqlite_file(url)
        if self._file is None:
            self._engine = _server_engine(url, self.name)
            return
        _check_path(self._file, create=create)
        # absolute, because the working directory may change later
        self._file = self._file.absolute()
        open_file = _sqlite_opener(self._file, self.name, write=write, create=create)
        self._opened = self._file.stat()
        self._engine = sa.create_engine(
            parse_url(url),
            creator=open_file,
            execution_options={NAME_OPTION: self.name},
            json_serializer=dump_json,
        )

    def is_moved(self) -> bool:
        """Return whether the path no longer leads to the file that was opened (SQLite only)."""
        if self._file is None:
            return False
        try:
            return not os.path.samestat(self._file.stat(), self._opened)
        except OSError:
            return True

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection whose queries see the same state of the database."""
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql(_BEGIN_READING[connection.dialect.name])
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection for one transaction. If it waits for another one, it sees what that
        has committed. Raises StoreError afterwards if the file of the database was moved, deleted
        or replaced; a moved file then has what was written."""
        if not self.is_writable:
            raise StoreError(f"{self.name} is open for reading only")
        with self._lock, self._explained(), self._engine.begin() as connection:
            connection.exec_driver_sql(_BEGIN_WRITING[connection.dialect.name])
            yield connection
        if self.is_moved():
            raise StoreError(f"{self.name} was moved, deleted or replaced while it was in use")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, sqlite3.Error) as error:
            raise explain(error, self.name) from error

    def close(self) -> None:
        """Close every connection. The database cannot be used afterwards."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def connected(
    url: DatabaseUrl, *, write: bool = False, name: str | None = None
) -> Iterator[Connection]:
    """Yield a connection to an existing database, in one transaction that sees a snapshot of it.
    `name`: what messages call the database."""
    with Database(url, write=write, name=name) as database:
        begin = database.writing if write else database.reading
        with begin() as connection:
            yield connection


def insert(connection: Connection, table: sa.Table) -> Any:
    """Return the INSERT of the connection's dialect, which has `on_conflict_do_nothing`."""
    dialect = import_module(f"sqlalchemy.dialects.{connection.dialect.name}")
    return dialect.insert(table)


def revision(connection: Connection) -> str | None:
    """Return the revision of the database, None if it is empty. Raises StoreError for another
    program's database."""
    tables = sa.inspect(connection).get_table_names()
    if not tables:
        return None
    if not {"alembic_version", "sweep_cell"} <= set(tables):
        raise StoreError(f"{name_of(connection)} belongs to another program; {ELSEWHERE}")
    version: str = connection.scalars(sa.text("SELECT version_num FROM alembic_version")).one()
    return version


def make_unless_there(connection: Connection) -> str:
    """Create the schema in an empty database; return the revision."""
    schema.lock(connection)
    return revision(connection) or schema.make(connection)


def require_head(current: str, name: str) -> None:
    """Raise SchemaError unless the database has this version's schema."""
    if current == HEAD_REVISION:
        return
    hint = "use the version that wrote it or a newer one"
    if current in REVISIONS:
        hint = f"run `effbench db upgrade --db {shlex.quote(name)}`"
        if "://" in name:
            hint = "`effbench import OLD_URL --db NEW_URL` copies it into a new database"
    raise SchemaError(
        f"{name} has schema {current}, but this effbench reads {HEAD_REVISION}; {hint}"
    )


def explain(error: exc.SQLAlchemyError | sqlite3.Error | ValueError, name: str) -> StoreError:
    """Return a database's error as a StoreError with an explanation."""
    text = _first_line(error)
    # also of a value that is not even passed on to the database
    if isinstance(error, exc.IntegrityError | exc.DataError) or type(error) is exc.StatementError:
        return ValueRefusedError(f"{name} does not take a value ({text})")
    for pattern, meaning in _EXPLANATIONS.items():
        if re.search(pattern, text.lower()):
            return StoreError(f"{name} {meaning} ({text})")
    return StoreError(f"{name}: {text}")


def _is_lost(error: BaseException | None) -> bool:
    """Return whether a server's connection broke, or another transaction was in the way."""
    cause: Any = getattr(error, "orig", None)
    if not isinstance(error, exc.OperationalError) or not hasattr(cause, "sqlstate"):
        return False
    # psycopg has no code for what it finds out itself, such as a closed socket
    return cause.sqlstate is None or str(cause.sqlstate).startswith(_LOST)


class Patience:
    """Waits, BUSY_TIMEOUT_S at most, while the server of a database restarts, or another
    transaction is in the way."""

    def __init__(self, name: str) -> None:
        """`name`: what messages call the database."""
        self.name = name
        self.began = time.monotonic()
        self.is_reported = False

    def wait(self, error: StoreError) -> None:
        """Wait before the next attempt. Raises the error of the last attempt if another one cannot
        help, StoreError if it comes too late."""
        if not _is_lost(error.__cause__):
            raise error
        reason = _first_line(error.__cause__)
        waited_s = time.monotonic() - self.began
        if waited_s > BUSY_TIMEOUT_S:
            raise StoreError(
                f"{self.name} was not reachable for {BUSY_TIMEOUT_S:g} s: {reason}"
            ) from error
        if waited_s > SILENT_S and not self.is_reported:
            print(f"effbench: waiting for {self.name}: {reason}", file=sys.stderr, flush=True)
            self.is_reported = True
        time.sleep(POLL_S)


def _first_line(error: BaseException | None) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def _server_engine(url: DatabaseUrl, name: str) -> sa.Engine:
    """Return an engine that has connected to the server once. Raises StoreError."""
    parsed = parse_url(url)
    try:
        engine = sa.create_engine(
            parsed,
            json_serializer=dump_json,
            pool_pre_ping=True,
            connect_args={key: _LIBPQ[key] for key in _LIBPQ.keys() - parsed.query.keys()},
            execution_options={NAME_OPTION: name},
        )
        engine.connect().close()
    except ImportError as error:
        raise StoreError(
            f"{name} needs a PostgreSQL driver; run pip install 'effbench[postgres]'"
        ) from error
    except exc.SQLAlchemyError as error:
        raise StoreError(f"{name} cannot be reached: {_first_line(error)}") from error
    return engine


def _sqlite_opener(
    file: Path, name: str, *, write: bool, create: bool
) -> Callable[[], sqlite3.Connection]:
    """Return the function that connects to the file, after connecting once. Raises StoreError."""
    # readers also open it to write: only this removes the files of a write-ahead log
    mode = "rw"
    try:
        _open_sqlite(file, "rwc" if create else mode, write).close()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if write or not re.search(_NO_INDEX, str(error).lower()):
            raise explain(error, name) from error
        # an immutable file is read without its log: too little, or too much
        require_finished(file, "-wal", "-journal")
        mode = "ro&immutable=1"
    return partial(_open_sqlite, file, mode, write)


def _open_sqlite(file: Path, mode: str, write: bool) -> sqlite3.Connection:
    pragmas = [
        "trusted_schema = OFF",  # a file may contain code that runs when it is read
        "foreign_keys = ON",
    ]
    if write:
        # small pages of a new file waste less space with rows of 2 to 3 kB
        pragmas += ["synchronous = NORMAL", "page_size = 2048"]
    else:
        pragmas += ["query_only = ON", "temp_store = MEMORY"]  # sorting must not need disk space
    connection = sqlite3.connect(
        f"{file.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # `Database` begins transactions
        check_same_thread=False,
    )
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):  # SQLite's error quotes a damaged schema
        connection.close()
        raise
    return connection


def missing(path: Path) -> str:
    """Return the message that there is no database at this path, with the folder and what to do."""
    where = str(path)
    if not path.is_absolute():
        where = f"{path} in the folder {Path.cwd()}"
    run = f"effbench -m model=mlp bs=1,8 mode=eager,default{db_setting(str(path))}"
    return (
        f"no database at {where}: change to the folder of your sweep, or name its database (--db"
        " PATH for a command, db=PATH for a sweep)\n"
        f"If you have run no sweep yet, run one first: {run}"
    )


def _check_path(path: Path, *, create: bool) -> None:
    try:
        if path.exists() and not path.is_file():  # SQLite would wait for the other end of a pipe
            raise StoreError(f"{path} is not a file; name the file of a database")
        if create:
            create_folder(path.parent)
        elif not path.exists():
            raise StoreError(missing(path))
    except OSError as error:
        raise StoreError(
            f"{path} cannot be used: {error.strerror or error}; {ELSEWHERE}"
        ) from error


def require_finished(file: Path, *endings: str) -> None:
    """Raise StoreError if SQLite has yet to apply a write-ahead log (`-wal`) or a rollback journal
    (`-journal`) to the file. It is next to the file that links lead to."""
    for ending in endings:
        log = Path(os.path.realpath(file) + ending)
        if log.exists() and log.stat().st_size:
            hint = (
                f"`effbench ls{db_option(str(file))}` finishes it; in a read-only folder, copy both"
                " files first"
            )
            raise StoreError(f"{file} has an unfinished transaction in {log}; {hint}")

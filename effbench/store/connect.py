"""From a URL to an engine, with errors of one or two lines.

SQLite connections are made here and not by SQLAlchemy's URL, so that a reader never creates a file, a database in a
read-only folder can be read, and Python's own transaction handling stays out of the way.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from effbench.errors import SchemaError, StoreError
from effbench.store.schema import EARLIER, HEAD_REVISION, REVISIONS
from effbench.store.secrets import masked_url
from effbench.store.values import dump_json

ELSEWHERE = "name another (db=URL, or --db URL of a command)"
BUSY_TIMEOUT_S = 30.0
WRITE_OPTION = "effbench_write"
#: The SQLite file of an engine that writes: its path, device and inode.
FILE_OPTION = "effbench_file"
_FORMS = "give a path, sqlite:///PATH or postgresql://USER@HOST/NAME"
#: Words in a database's error, and what they mean for the user.
_EXPLANATIONS = (
    (("not a database", "malformed", "file is encrypted"), "is not a database, or is damaged; restore a copy"),
    (("readonly", "read-only"), f"cannot be written; check its permissions or {ELSEWHERE}"),
    (("locked",), "stayed locked by another process; try again when that has ended"),
    (("unable to open",), "cannot be opened; check the permissions of the file and its folder"),
    (("disk i/o", "disk is full"), f"failed: the disk is full or damaged; free some space or {ELSEWHERE}"),
)


def parse_url(url: str | os.PathLike[str]) -> sa.URL:
    """Return `url` as SQLAlchemy's type; a plain path is a SQLite file. Raises StoreError for what cannot be used."""
    given = os.fspath(url)
    if not given:
        raise StoreError(f"the database has no name; {_FORMS}")
    if "://" not in given:
        return sa.URL.create("sqlite", database=os.path.expanduser(given))  # noqa: PTH111 - keeps "./" and the like
    try:
        parsed = sa.make_url(given)
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(f"not a database URL: {masked_url(given)}; {_FORMS}") from error
    if parsed.drivername in ("sqlite", "sqlite+pysqlite"):
        if parsed.host or "?" in given or parsed.database in (None, "", ":memory:"):
            form = "sqlite:///PATH of a file (four slashes for an absolute path), without a host and a ?"
            raise StoreError(f"{masked_url(given)}: a SQLite URL is {form}")
        return parsed
    if parsed.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise StoreError(f"unknown database {parsed.drivername!r} in {masked_url(given)}; {_FORMS}")
    if "@" in (parsed.host or ""):
        raise StoreError(f"{masked_url(given)}: a user name or password holds @: write it as %40")
    return parsed.set(drivername="postgresql+psycopg")


def artifact_home(url: str | os.PathLike[str]) -> Path:
    """Return the folder that the names of artifacts are relative to: that of a SQLite file, else `results`."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Path(parsed.database).parent
    return Path("results")


def describe(url: sa.URL) -> str:
    """Return the database for a person: the path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    return masked_url(url.set(drivername="postgresql").render_as_string(hide_password=True))


def name_of(connection: sa.Connection) -> str:
    return describe(connection.engine.url)


def connect(url: sa.URL, *, write: bool, create: bool = False, untrusted: bool = False) -> sa.Engine:
    """Return an engine of which one connection has been tried. `create` makes a missing SQLite file and its folder."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, write, create, untrusted)
    return _server_engine(url, write)


@contextmanager
def connected(url: str | os.PathLike[str], *, write: bool = False, untrusted: bool = False) -> Iterator[sa.Connection]:
    """Yield a connection to an existing database in one transaction that sees one moment."""
    parsed = parse_url(url)
    engine = connect(parsed, write=write, untrusted=untrusted)
    options: dict[str, Any] = {WRITE_OPTION: write}
    if engine.dialect.name == "postgresql":  # SQLite's transactions see one moment anyway
        options["isolation_level"] = "REPEATABLE READ"
    try:
        with engine.execution_options(**options).begin() as connection:
            yield connection
    except (exc.SQLAlchemyError, sqlite3.Error) as error:
        raise explain(error, describe(parsed)) from error
    finally:
        engine.dispose()


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT that can be told to do nothing on a conflict."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql as dialect
    else:
        from sqlalchemy.dialects import sqlite as dialect
    return dialect.insert(table)


def use_wal(engine: sa.Engine) -> None:
    """Switch to write-ahead logging, once in a database's life; if another process is in the way, a later one does."""
    with engine.connect() as connection, suppress(sqlite3.OperationalError):
        connection.connection.cursor().execute("PRAGMA journal_mode = WAL")


def revision(connection: sa.Connection) -> str | None:
    """Return the revision of the database, None if it is empty. Raises StoreError for another program's database."""
    tables = set(sa.inspect(connection).get_table_names())
    versions = []
    if "alembic_version" in tables:
        versions = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
    if not versions and tables <= {"alembic_version"}:
        return None
    if len(versions) != 1 or "sweep_cell" not in tables:
        some = ", ".join(sorted(tables)[:3])
        raise StoreError(f"{name_of(connection)} is a database of another program ({some} …); name another")
    return versions[0]


def require_head(current: str, name: str) -> None:
    """Raise SchemaError unless the database has this version's schema."""
    hint = "use the version that wrote it or a newer one"
    if current in EARLIER:
        hint = f"run `effbench import {shlex.quote(name)} --db NEW.db --baselines`"
    if current in REVISIONS:
        hint = f"run `effbench db upgrade --db {shlex.quote(name)}`"
    if current != HEAD_REVISION:
        raise SchemaError(f"{name} has schema {current}, this effbench reads {HEAD_REVISION}; {hint}")


def explain(error: exc.SQLAlchemyError | sqlite3.Error, name: str) -> StoreError:
    """Return a database's error as one of ours."""
    text = _first_line(error)
    if "disk I/O" in text and name and not Path(name).exists():
        return moved(name)
    for words, meaning in _EXPLANATIONS:
        if any(word in text.lower() for word in words):
            return StoreError(f"{name} {meaning} ({text})")
    return StoreError(f"{name}: {text}")


def _first_line(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


def moved(name: str) -> StoreError:
    return StoreError(f"{name} was moved, deleted or replaced while it was in use")


def identity(file: Path) -> tuple[int, int] | None:
    """Return device and inode, None if there is no such file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _server_engine(url: sa.URL, write: bool) -> sa.Engine:
    name = describe(url)
    connect_args = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
    try:
        engine = sa.create_engine(url, json_serializer=dump_json, pool_pre_ping=True, connect_args=connect_args)
    except ImportError as error:
        raise StoreError(f"{name} needs a PostgreSQL driver; pip install 'effbench[postgres]'") from error
    if not write:
        engine = engine.execution_options(postgresql_readonly=True)
    try:
        engine.connect().close()
    except exc.SQLAlchemyError as error:
        engine.dispose()
        raise StoreError(f"{name} cannot be reached: {_first_line(error)}") from error
    return engine


def _sqlite_engine(url: sa.URL, write: bool, create: bool, untrusted: bool) -> sa.Engine:
    path = Path(url.database or "")
    _check_path(path, create=create)
    # absolute: a later change of the working directory must not lead to another file
    file = path.absolute()
    # only a connection that may write removes the files of a write-ahead log
    mode = "ro" if untrusted and not _has_write_ahead_log(file) else "rw"
    try:
        _open_sqlite(file, "rwc" if create else mode, write).close()
    except sqlite3.Error as error:
        if write or not _has_no_index(error):
            raise explain(error, str(path)) from error
        log = file.with_name(f"{file.name}-wal")
        if log.exists() and log.stat().st_size:  # read as immutable, the database would look older than it is
            hint = "copy it with its -wal file to a folder with room that can be written"
            raise StoreError(f"{path} has an unfinished log that cannot be read here ({error}); {hint}") from error
        mode = "ro&immutable=1"
    opened = identity(file) if write else None

    def creator() -> sqlite3.Connection:
        if opened and identity(file) != opened:  # never go on in another file, let alone a new one
            raise moved(str(path))
        return _open_sqlite(file, mode, write)

    engine = sa.create_engine(
        url,
        creator=creator,
        execution_options={FILE_OPTION: (file, opened)} if opened else {},
        json_serializer=dump_json,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE takes the write lock at once and waits for it; a deferred one that turns writer fails instead
        writes = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _open_sqlite(file: Path, mode: str, write: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{urllib.parse.quote(str(file))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,  # transactions are begun by us
        check_same_thread=False,
    )
    try:
        connection.execute("PRAGMA trusted_schema = OFF")  # a file may define what runs when it is read
        connection.execute("PRAGMA foreign_keys = ON")
        if write:
            connection.execute("PRAGMA synchronous = NORMAL")
        else:
            connection.execute("PRAGMA query_only = ON")
            connection.execute("PRAGMA temp_store = MEMORY")  # sorting must not need room on a disk
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _check_path(path: Path, *, create: bool) -> None:
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it, such as {path / 'effbench.db'}")
        if create:
            path.parent.mkdir(parents=True, exist_ok=True)
        elif not path.exists():
            raise StoreError(
                f"no database at {path}; `effbench -m model=mlp bs=1,8 mode=eager,default db={path}` makes one"
            )
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}; {ELSEWHERE}") from error


def _has_no_index(error: sqlite3.Error) -> bool:
    """Return whether the index of a log cannot be made, so that no other process can have the database open."""
    message = str(error).lower()
    return any(part in message for part in ("unable to open", "readonly", "read-only", "disk i/o", "disk is full"))


def _has_write_ahead_log(file: Path) -> bool:
    with suppress(OSError), file.open("rb") as stream:
        return stream.read(20)[18:] == b"\2\2"
    return False

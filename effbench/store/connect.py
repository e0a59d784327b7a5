"""From a URL to an engine, with errors of one or two lines.

SQLite connections are made here and not by SQLAlchemy's URL, so that a reader never creates a file, a database in a
read-only folder can be read, and Python's own transaction handling stays out of the way.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sqlite3
import time
import urllib.parse
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc
from sqlalchemy.pool import QueuePool

from effbench.errors import SchemaError, StoreError
from effbench.store.schema import HEAD_REVISION, IMPORTED_REVISIONS, REVISIONS
from effbench.store.secrets import masked_url
from effbench.store.values import dump_json

ELSEWHERE = "name another (db=URL, or --db URL of a command)"
BUSY_TIMEOUT_S = 30.0
WRITE_OPTION = "effbench_write"
#: With less room than this, SQLite cannot make the index of its log.
FULL_BYTES = 2**15
#: The SQLite file of an engine that writes: its path, device and inode.
FILE_OPTION = "effbench_file"


def parse_url(url: str | os.PathLike[str]) -> sa.URL:
    """`url` as SQLAlchemy's type; a plain path is a SQLite file. Raises StoreError for what cannot be used."""
    given = os.fspath(url)
    if not given:
        raise StoreError("the database has no name; give a path (results/effbench.db) or a URL (sqlite:///PATH)")
    if "://" not in given:
        return sa.URL.create("sqlite", database=os.path.expanduser(given))  # noqa: PTH111 - keeps "./" and the like
    try:
        parsed = sa.make_url(given)
    except (exc.ArgumentError, ValueError) as error:
        raise StoreError(
            f"not a database URL: {masked_url(given)}; give a path, sqlite:///PATH or postgresql://USER@HOST/NAME"
        ) from error
    backend, _, driver = parsed.drivername.partition("+")
    if backend == "sqlite" and driver in ("", "pysqlite"):
        if "?" in given:  # all behind it would be lost, and the file another one
            raise StoreError(
                f"{masked_url(given)}: a SQLite URL is sqlite:///PATH without a ?; "
                "a file that has one is named by its path"
            )
        if parsed.host:
            raise StoreError(f"{masked_url(given)}: a SQLite URL is sqlite:///PATH (four slashes for an absolute path)")
        if parsed.database in (None, "", ":memory:"):
            raise StoreError("a database in memory ends with this process; give a file: sqlite:///results/effbench.db")
        return parsed
    if backend in ("postgresql", "postgres"):
        if driver not in ("", "psycopg", "psycopg2", "pg8000"):
            raise StoreError(
                f"unknown PostgreSQL driver {driver!r}; allowed are psycopg (the default), psycopg2, pg8000"
            )
        if "@" in (parsed.host or ""):
            raise StoreError(f"{masked_url(given)}: a user name or password holds @: write it as %40")
        # psycopg 3 is the driver of the extra; SQLAlchemy's default has been another
        return parsed.set(drivername=f"postgresql+{driver or 'psycopg'}")
    raise StoreError(
        f"unknown database {parsed.drivername!r} in {masked_url(given)}; effbench keeps results in SQLite or "
        "PostgreSQL (postgresql://…)"
    )


def artifact_home(url: str | os.PathLike[str]) -> Path:
    """The folder that the names in `trial.extra["artifacts"]` are relative to: a SQLite file's own, else `results`."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        return Path(parsed.database).parent
    return Path("results")


def describe(url: sa.URL) -> str:
    """The database for a person: the path, or the URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ""
    return masked_url(url.set(drivername="postgresql").render_as_string(hide_password=True))


def name_of(connection: sa.Connection) -> str:
    """The connection's database for a person."""
    return describe(connection.engine.url)


def connect(url: sa.URL, *, write: bool, create: bool = False, untrusted: bool = False) -> sa.Engine:
    """An engine of which one connection has been tried. `create` makes a missing SQLite file and its folder;
    `untrusted` opens a file that someone else may have made."""
    if url.get_backend_name() == "sqlite":
        return _sqlite_engine(url, write, create, untrusted)
    return _server_engine(url, write)


def insert(connection: sa.Connection, table: sa.Table) -> Any:
    """An INSERT that can be told to do nothing on a conflict."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql as dialect
    else:
        from sqlalchemy.dialects import sqlite as dialect
    return dialect.insert(table)


def use_wal(engine: sa.Engine) -> None:
    """Switch to write-ahead logging, once in a database's life; SQLite itself does not wait for the lock it needs."""
    with engine.connect() as connection:
        cursor = connection.connection.cursor()
        for _ in range(100):
            try:
                if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                    cursor.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error):
                    raise
                time.sleep(0.05)


def revision(connection: sa.Connection) -> str | None:
    """The revision of the database, None where it is empty. Raises StoreError for someone else's database."""
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return None
    found = (
        connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all()
        if ("alembic_version" in tables)
        else []
    )
    if not found and tables == {"alembic_version"}:
        return None
    if len(found) != 1 or "sweep_cell" not in tables:
        name = name_of(connection)
        raise StoreError(f"{name} is a database of another program ({', '.join(sorted(tables)[:3])} …); name another")
    return found[0]


def require_head(current: str, name: str) -> None:
    """Raise SchemaError unless the database has this version's schema."""
    if current == HEAD_REVISION:
        return
    if current in REVISIONS:
        hint = f"Run `effbench db upgrade --db {shlex.quote(name)}`."
    elif current in IMPORTED_REVISIONS:
        hint = f"Import it into a new one: `effbench import {shlex.quote(name)} --db NEW.db --baselines`."
    else:
        raise SchemaError(
            f"{name} was made by a newer effbench (schema {current}, known {HEAD_REVISION}); upgrade effbench"
        )
    raise SchemaError(f"{name} has the schema of an older effbench ({current}, now {HEAD_REVISION}).\n{hint}")


def explain(error: exc.SQLAlchemyError | sqlite3.Error, name: str) -> StoreError:
    """A database's error as one of ours."""
    cause = getattr(error, "orig", None) or error
    said = (str(cause).strip().splitlines() or [type(cause).__name__])[0]
    lowered = said.lower()
    if "not a database" in lowered or "malformed" in lowered or "file is encrypted" in lowered:
        return StoreError(f"{name} is not a database, or is damaged ({said}); restore a copy or name another file")
    if "readonly" in lowered or "read-only" in lowered:
        return StoreError(f"{name} cannot be written ({said}); check its permissions or {ELSEWHERE}")
    if "locked" in lowered:
        return StoreError(f"{name} stayed locked by another process for {BUSY_TIMEOUT_S:.0f} s ({said})")
    if "unable to open" in lowered:
        return StoreError(f"{name} cannot be opened ({said}); check the permissions of the file and its folder")
    if "disk is full" in lowered or ("disk i/o" in lowered and _has_full_disk(name)):
        return StoreError(f"{name} cannot be written: the disk is full; free some space or {ELSEWHERE}")
    if "disk i/o" in lowered and not Path(name).exists():
        return moved(name)
    if "disk i/o" in lowered:
        return StoreError(f"{name}: {said}; check whether the disk is full or damaged, or {ELSEWHERE}")
    return StoreError(f"{name}: {said}")


def _has_full_disk(file: str) -> bool:
    """SQLite reports a full disk as an I/O error if it is the index of a log that has no room."""
    try:
        return shutil.disk_usage(Path(file).parent).free < FULL_BYTES
    except OSError:
        return False


def moved(name: str) -> StoreError:
    return StoreError(f"{name} was moved, deleted or replaced while it was in use")


def identity(file: Path) -> tuple[int, int] | None:
    """Return device and inode, None if there is no such file."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _server_engine(url: sa.URL, write: bool) -> sa.Engine:
    name = describe(url)
    waits = url.get_driver_name() == "psycopg" and "connect_timeout" not in url.query
    connect_args = {"connect_timeout": 10} if waits else {}
    try:
        engine = sa.create_engine(url, json_serializer=dump_json, pool_pre_ping=True, connect_args=connect_args)
    except (exc.NoSuchModuleError, ImportError) as error:
        raise StoreError(
            f"{name} needs a PostgreSQL driver that is not installed; pip install 'effbench[postgres]'"
        ) from error
    if not write:
        engine = engine.execution_options(postgresql_readonly=True)
    try:
        with engine.connect():
            pass
    except exc.OperationalError as error:
        engine.dispose()
        said = (str(error.orig).strip().splitlines() or ["no answer"])[0]
        raise StoreError(f"{name} cannot be reached: {said}") from error
    except exc.SQLAlchemyError as error:
        engine.dispose()
        raise explain(error, name) from error
    return engine


def _sqlite_engine(url: sa.URL, write: bool, create: bool, untrusted: bool) -> sa.Engine:
    path = Path(url.database or "")
    _check_path(path, write=write, create=create)
    # absolute: a later change of the working directory must not lead to another file
    file = path.absolute()
    flags = "mode=rwc" if create else "mode=ro" if untrusted and not _has_log(file) else "mode=rw"
    try:
        with closing(_dbapi_connect(file, flags, write)):
            pass
    except sqlite3.Error as error:
        if not write and _cannot_open(error) and _unfinished(file):
            raise StoreError(
                f"{path} was not closed by its last writer, and its folder is read-only or its disk is full ({error}); "
                "free some space, or copy it with its -wal file to a folder that can be written"
            ) from error
        if write or not _cannot_open(error):
            raise explain(error, str(path)) from error
        flags = "mode=ro&immutable=1"
        try:
            with closing(_dbapi_connect(file, flags, write)):
                pass
        except sqlite3.Error as again:
            raise explain(again, str(path)) from again
    opened = identity(file) if write else None
    flags = flags.replace("rwc", "rw")

    def creator() -> sqlite3.Connection:
        if opened and identity(file) != opened:  # never go on in another file, let alone a new one
            raise moved(str(path))
        return _dbapi_connect(file, flags, write)

    engine = sa.create_engine(
        url,
        creator=creator,
        execution_options={FILE_OPTION: (file, opened)} if opened else {},
        poolclass=QueuePool,
        pool_size=5,
        max_overflow=-1,
        json_serializer=dump_json,
    )

    @event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # IMMEDIATE takes the write lock at once and waits for it; a deferred one that turns writer fails instead
        writes = connection.get_execution_options().get(WRITE_OPTION, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _dbapi_connect(file: Path, flags: str, write: bool) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{urllib.parse.quote(str(file))}?{flags}",
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


def _check_path(path: Path, *, write: bool, create: bool) -> None:
    try:
        if path.is_dir():
            raise StoreError(f"{path} is a folder; name a file in it, such as {path / 'effbench.db'}")
        if path.exists():
            if write and not os.access(path, os.W_OK):
                raise StoreError(f"{path} cannot be written; check its permissions or {ELSEWHERE}")
            if not os.access(path, os.R_OK):
                raise StoreError(f"{path} cannot be read; check its permissions")
            return
        if not create:
            raise StoreError(
                f"no database at {path}; `effbench -m model=mlp bs=1,8 mode=eager,default db={path}` makes one"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            raise StoreError(f"{path} cannot be made: its folder is not writable; {ELSEWHERE}")
    except OSError as error:
        raise StoreError(f"{path} cannot be used: {error.strerror or error}; {ELSEWHERE}") from error


def _cannot_open(error: sqlite3.Error) -> bool:
    """Whether a WAL database's index cannot be made: the folder is read-only, or the disk is full.

    So nobody else has the database open, or its index would be there.
    """
    message = str(error).lower()
    return any(part in message for part in ("unable to open", "readonly", "read-only", "disk i/o", "disk is full"))


def _has_log(file: Path) -> bool:
    """Whether a SQLite file has write-ahead logging on: only a connection that may write removes the log's files."""
    try:
        with file.open("rb") as stream:
            return stream.read(20)[18:] == b"\2\2"
    except OSError:
        return False


def _unfinished(file: Path) -> bool:
    """A log that still holds transactions: read as immutable, the database would look older than it is."""
    log = file.with_name(file.name + "-wal")
    try:
        return log.stat().st_size > 0
    except OSError:
        return False

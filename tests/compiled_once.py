"""What makes tests quick: SQL and templates of documents are compiled once."""

import functools

import pytest
import sqlalchemy as sa

from effbench.render import templating


class SharedStatements(dict):
    """Compiled statements by SQLAlchemy's keys, but without their first part: the dialect, which
    each engine has for itself."""

    def get(self, key, default=None):
        return super().get(key[1:], default)

    def __setitem__(self, key, compiled):
        super().__setitem__(key[1:], compiled)


def do_not_wait_for_the_disk(connection, record):
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session", autouse=True)
def shared_statements():
    """Engines of one kind of database share their compiled statements, and files are not
    synchronised with the disk. effbench makes an engine whenever it opens a database; compiling and
    the disk take more than half of the time of a made-up sweep."""
    original = sa.create_engine
    kept = {"sqlite": SharedStatements(), "postgresql": SharedStatements()}

    def create_engine(url, **options):
        kind = sa.make_url(url).get_backend_name()
        own = options.pop("execution_options", {})
        engine = original(url, execution_options={**own, "compiled_cache": kept[kind]}, **options)
        if kind == "sqlite":
            sa.event.listen(engine, "connect", do_not_wait_for_the_disk)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sa, "create_engine", create_engine)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_templates():
    """Documents share their compiled templates. effbench compiles them for each site that it
    writes, which takes most of the time of a small one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templating, "environment", functools.cache(templating.environment))
        yield

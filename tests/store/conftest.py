import shutil

import made_sweeps
import pytest
from postgres_server import empty_database

from effbench.core.cell import Cell
from effbench.store import Store
from effbench.store.schema import METADATA


@pytest.fixture
def cell():
    def make(mode="eager", *, model="mlp", bs=1, dtype="float32", **settings):
        return Cell(
            {"name": model},
            bs,
            {"name": mode, **settings},
            dtype,
            "inference",
            "cpu",
        )

    return make


@pytest.fixture
def environment():
    return lambda **changed: made_sweeps.environment(**{"gpu_name": None, **changed})


@pytest.fixture
def begin():
    return lambda store, plan, **changed: made_sweeps.begun(store, plan, **{"rounds": 3, **changed})


#: Modules whose tests run on SQLite and on PostgreSQL, and single tests.
ON_BOTH = {
    "test_store_processes",
    "test_store_record",
    "test_store_sweeps",
    "test_store_traces",
    "test_every_round_has_its_figure",
    "test_past_results_are_of_one_moment",
    "test_a_name_holds_once_for_each_hardware",
    "test_the_efficiency_does_not_depend_on_the_order_of_the_trials",
}


def pytest_generate_tests(metafunc):
    if "database_kind" in metafunc.fixturenames and ON_BOTH & {
        metafunc.module.__name__,
        metafunc.function.__name__,
    }:
        metafunc.parametrize("database_kind", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def database_kind(request):
    return getattr(request, "param", "sqlite")


@pytest.fixture
def absent(database_kind, request, tmp_path):
    """The path of a database that does not exist yet, or the URL of an empty one."""
    if database_kind == "postgresql":
        return request.getfixturevalue("postgres")
    return tmp_path / "results" / "effbench.db"


@pytest.fixture(scope="session")
def postgres_template(postgres_url):
    """The URL of a database with a schema and nothing in it."""
    databases = empty_database(postgres_url)
    url = next(databases)
    Store.open(url, mode="write").close()
    yield url
    next(databases, None)


@pytest.fixture
def postgres_emptied(postgres_template):
    """The same database, without what a test writes: making another one takes a second."""
    yield postgres_template
    names = ", ".join(METADATA.tables)
    made_sweeps.sql(postgres_template, f"TRUNCATE {names} RESTART IDENTITY")


@pytest.fixture
def path(database_kind, request, tmp_path):
    """The path or URL of a database with a schema and nothing in it."""
    if database_kind == "postgresql":
        return request.getfixturevalue("postgres_emptied")
    empty = request.getfixturevalue("empty_db")
    return made_sweeps.copied(empty, tmp_path / "results" / "effbench.db").path


@pytest.fixture
def made(path):
    """A database of made-up sweeps."""
    return made_sweeps.Made(path)


@pytest.fixture
def store(path):
    with Store.open(path, mode="write") as opened:
        yield opened


@pytest.fixture
def here(store, environment):
    """The id of an environment in the store."""
    return store.add_environment(environment(), {})


@pytest.fixture
def opened(made):
    """The store of `made`."""
    with Store.open(made.path, mode="write") as store:
        yield store


@pytest.fixture
def source(odd, tmp_path):
    """A copy of it to play with."""
    return shutil.copy(odd, tmp_path / "source.db")


@pytest.fixture
def target(empty_db, tmp_path):
    """An empty database."""
    return shutil.copy(empty_db, tmp_path / "target.db")

import shutil

import made_sweeps
import pytest

from effbench.cell import Cell
from effbench.store import Store


@pytest.fixture
def cell():
    def make(mode="eager", *, model="mlp", bs=1, dtype="float32", **settings):
        return Cell({"name": model}, bs, {"name": mode, **settings}, dtype, "inference", "cpu")

    return make


@pytest.fixture
def environment():
    return lambda **changed: made_sweeps.environment(**{"gpu_name": None, **changed})


@pytest.fixture
def begin():
    return lambda store, plan, **changed: made_sweeps.begun(store, plan, **{"rounds": 3, **changed})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "effbench.db"


@pytest.fixture
def store(path):
    with Store.open(path, mode="write") as opened:
        yield opened


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

import shutil

import pytest
import whole_sweeps

from effbench.cell import Cell, Environment
from effbench.store import Store


@pytest.fixture
def cell():
    def make(mode="eager", *, model="mlp", bs=1, dtype="float32", **settings):
        return Cell({"name": model}, bs, {"name": mode, **settings}, dtype, "inference", "cpu")

    return make


@pytest.fixture
def environment():
    def make(**changed):
        facts = {
            "gpu_name": None,
            "gpu_memory_bytes": None,
            "driver_version": None,
            "cuda_version": None,
            "torch_version": "2.13.0",
            "triton_version": None,
            "python": "3.11.9",
            "cpu_name": "cpu",
            "platform": "linux",
        }
        return Environment(**{**facts, **changed})

    return make


@pytest.fixture
def begin():
    def make(store, plan, **changed):
        facts = {
            "name": None,
            "label": None,
            "command": ["effbench"],
            "overrides": [],
            "protocol": {"name": "quick"},
            "baseline_mode": "eager",
            "seed": 0,
            "git_revision": None,
            "host": {"name": "host"},
            "plan": plan,
            "rounds": 3,
        }
        return store.begin_sweep(**{**facts, **changed})

    return make


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results" / "effbench.db"


@pytest.fixture
def store(path):
    with Store.open(path, mode="write") as opened:
        yield opened


@pytest.fixture(scope="session")
def odd(tmp_path_factory):
    """A database with everything in it that is hard to carry; nobody writes to it."""
    path = tmp_path_factory.mktemp("odd") / "odd.db"
    whole_sweeps.odd_database(path)
    return path


@pytest.fixture
def source(odd, tmp_path):
    """A copy of it to play with."""
    return shutil.copy(odd, tmp_path / "source.db")


@pytest.fixture(scope="session")
def blank(tmp_path_factory):
    path = tmp_path_factory.mktemp("blank") / "blank.db"
    Store.open(path, mode="write").close()
    return path


@pytest.fixture
def target(blank, tmp_path):
    """An empty database."""
    return shutil.copy(blank, tmp_path / "target.db")

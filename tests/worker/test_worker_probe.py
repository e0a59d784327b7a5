"""The fingerprint of an environment: which variables belong to it."""

import pytest

from effbench.worker.probe import environment


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_ALGO",
        "NCCL_P2P_DISABLE",
        "TORCH_NCCL_AVOID_RECORD_STREAMS",
        "OMP_NUM_THREADS",
    ],
)
def test_a_variable_that_changes_figures_gives_another_environment(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    before = environment([])
    monkeypatch.setenv(name, "1")
    after = environment([])
    assert after.flags == {**before.flags, name: "1"}
    assert after.id != before.id


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_DEBUG_SUBSYS",
        "NCCL_TOPO_DUMP_FILE",
        "NCCL_VERSION",
        "TRITON_CACHE_DIR",
    ],
)
def test_logs_caches_and_stated_versions_leave_the_environment_as_it_is(monkeypatch, name):
    monkeypatch.delenv(name, raising=False)
    before = environment([])
    monkeypatch.setenv(name, "1")
    assert environment([]).id == before.id

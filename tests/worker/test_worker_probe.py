"""The fingerprint of an environment: which variables belong to it."""

import pytest
import torch

from effbench.core.message import ProbeRequest
from effbench.worker.probe import environment, run_task


class Phases:
    """A pipe whose messages nobody needs."""

    def send(self, **message):
        pass


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


@pytest.mark.parametrize("starts_cuda", [False, True])
def test_a_module_that_uses_a_gpu_on_import_is_noticed(tmp_path, monkeypatch, starts_cuda):
    monkeypatch.setattr(torch.cuda, "_initialized", False)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"greedy_{starts_cuda}"
    code = f"import torch\n\ntorch.cuda._initialized = {starts_cuda}\nNet = torch.nn.ReLU\n"
    (tmp_path / f"{name}.py").write_text(code)
    request = ProbeRequest(modules={f"{name}.Net": []}, device="cpu")
    assert run_task(request.to_json(), Phases())["starts_cuda"] is starts_cuda

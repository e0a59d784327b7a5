"""What Inductor asks of the machine is learned before anything is timed, once, and kept for other
processes."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch._inductor import codecache

from effbench.modes import inductor
from effbench.run.client import ForkServer

COMPILES_ONE = """
import sys
import torch
from effbench.modes import inductor

inductor.learn_vector_instructions()
inductor.use_caches_in(sys.argv[1])
x = torch.ones(64)
torch.testing.assert_close(torch.compile(lambda x: (x * 2 + 1).sin())(x), (x * 2 + 1).sin())
"""


def libraries(folder: Path) -> set[Path]:
    return set(folder.rglob("*.so"))


def headers(folder: Path) -> set[Path]:
    return set(folder.rglob("*.gch"))


@pytest.mark.slow
def test_a_server_learns_and_no_cell_compiles_the_samples_again(tmp_path, monkeypatch):
    machine, cell = tmp_path / "machine", tmp_path / "cell"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(machine))
    monkeypatch.setenv("TMPDIR", str(temporary))
    server = ForkServer()
    try:
        server.wait_ready()
        eager, compiled = (
            ("effbench.modes.eager.Eager", "cpu"),
            ("effbench.modes.compiled.Compiled", "cpu"),
        )
        server.call("preload", {"modules": [], "networks": [], "modes": [eager]}, 120)
        assert libraries(machine) == headers(temporary) == set()
        server.call("preload", {"modules": [], "networks": [], "modes": [eager, compiled]}, 300)
    finally:
        server.close()
    samples = libraries(machine)
    assert samples, "torch compiles no samples any more"
    precompiled = headers(temporary)
    assert precompiled, "torch precompiles no headers any more, or elsewhere"
    subprocess.run([sys.executable, "-W", "ignore", "-c", COMPILES_ONE, str(cell)], check=True)
    assert len(libraries(cell)) == 1
    assert libraries(machine) == samples
    assert headers(temporary) == precompiled


@pytest.mark.parametrize(
    ("present", "runs"), [([], True), (["a.h", "a.h.gch"], False), (["a.h"], True)]
)
def test_headers_are_precompiled_unless_there_are_some(tmp_path, monkeypatch, present, runs):
    for name in present:
        (tmp_path / name).touch()
    monkeypatch.setattr(codecache, "_HEADER_DIR", str(tmp_path))
    started = tmp_path / "started"
    monkeypatch.setattr(inductor, "compile_sample", started.touch)
    inductor.precompile_headers()
    assert started.exists() == runs

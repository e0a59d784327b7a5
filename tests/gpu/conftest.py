"""Every test below needs a CUDA device: marked `gpu`, skipped without one (CI has none).

All sweeps of a process share a fork server and a database, because a server takes seconds to start.
Several processes of pytest share the GPU: most tests check facts rather than times. Those marked
`alone` wait until no other test runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from effbench.config.launch import hydra_sweep
from effbench.core.settings import shipped
from effbench.run.client import ForkServer
from effbench.run.devices import Slot
from effbench.store import Store
from effbench.store.values import result_row

HERE = Path(__file__).parent
#: Trials of about a second.
SHORT = (
    "protocol=quick",
    "protocol.budget_s=0.2",
    "protocol.min_time_s=0.05",
    "protocol.warmup_s=0.05",
    "protocol.load_s=0",
    "protocol.host_tolerance=1000",
    "executor.foreign_wait_s=0",
    "executor.renew_server=false",
    "sweep.seed=1",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Let a test marked `alone` wait for all others, and others for it, before its fixtures and its
    time begin."""
    if HERE not in item.path.parents:
        return (yield)
    with (Path(tempfile.gettempdir()) / "effbench-gpu-tests.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="module", autouse=True)
def shared_gpu() -> Iterator[None]:
    """Several sweeps at a time use the GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Slot, "try_lock", lambda _: socket.socket(socket.AF_UNIX))
        yield


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of all sweeps, with the modules that they import."""
    folder = tmp_path_factory.mktemp("gpu")
    shutil.copy(HERE / "modules.py", folder)
    shutil.copy(HERE.parent / "known_causes.py", folder)
    (folder / "conf" / "model").mkdir(parents=True)
    return folder


@pytest.fixture(scope="session")
def server(folder: Path) -> Iterator[ForkServer]:
    with contextlib.closing(ForkServer(folder=str(folder))) as server:
        yield server


@pytest.fixture(scope="session")
def run(folder: Path, server: ForkServer) -> Any:
    """Run a sweep; return its trials in order, each with its `cell` and `mode`, and its rows of the
    view."""

    def run(*overrides: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        with contextlib.chdir(folder):
            outcome = hydra_sweep(
                ["--config-dir=conf", *SHORT, *overrides], quiet=True, server=server
            )
            assert outcome.state == "completed"
            with Store.open(outcome.db) as store:
                cells = {cell.key: cell for cell in store.planned(outcome.sweep_id)}
                trials = [
                    {**vars(trial), "cell": cells[trial.cell_key]}
                    for trial in store.trials(outcome.sweep_id)
                ]
                rows = [result_row(result) for result in store.results(outcome.sweep_id)]
        return [{**trial, "mode": trial["cell"].mode_name} for trial in trials], rows

    return run


@pytest.fixture(scope="session")
def swept(run: Any) -> Any:
    """Run a sweep; return its trials."""
    return lambda *overrides: run(*overrides)[0]


@pytest.fixture(scope="session")
def custom(run: Any) -> Any:
    """Run a sweep over modules of modules.py; return the rows of the view."""

    def sweep(names: str, mode: str, shape: str, *overrides: str) -> list[dict[str, Any]]:
        target = ",".join(f"modules.{name}" for name in names.split(","))
        model = (f"model.module._target_={target}", f"model.inputs.x.shape={shape}")
        return run("model=custom", *model, f"mode={mode}", *overrides)[1]

    return sweep


@pytest.fixture(scope="session")
def sweep_of_variants(run: Any, folder: Path) -> Any:
    """Run a sweep over shipped models with other settings, each by a name of its own; return the
    view's rows.

    variants: by name, the shipped model, its module's settings and the shape of its input x, if
    another one.
    """

    def sweep(variants: dict[str, tuple], *overrides: str) -> list[dict[str, Any]]:
        for name, (model, settings, *shape) in variants.items():
            node = OmegaConf.load(shipped("conf") / "model" / f"{model}.yaml")
            node.name = name
            node.module.update(settings)
            if shape:
                node.inputs.x.shape = shape[0]
            OmegaConf.save(node, folder / "conf" / "model" / f"{name}.yaml")
        return run(f"model={','.join(variants)}", *overrides)[1]

    return sweep

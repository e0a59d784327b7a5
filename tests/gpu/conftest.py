"""Every test below needs a CUDA device: marked `gpu`, skipped without one (CI has none)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

import effbench
from effbench.config import shipped
from effbench.store import Store

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with modules.py in it."""
    folder = tmp_path_factory.mktemp("gpu")
    (folder / "modules.py").write_text((HERE / "modules.py").read_text())
    with contextlib.chdir(folder):
        yield folder


@pytest.fixture(scope="module")
def swept(folder: Path) -> Any:
    """Run a sweep; return its trials in order, each with its `mode` and `cell`."""

    def run(*overrides: str) -> list[dict[str, Any]]:
        sweep = effbench.sweep([*overrides, "protocol=quick", "protocol.host_tolerance=null"])
        with Store.open(sweep.db) as store:
            cells = {cell.key: cell for cell in store.planned(sweep.id)}
            trials = [{**trial, "cell": cells[trial["cell_key"]]} for trial in store.trials(sweep.id)]
        return [{**trial, "mode": trial["cell"].mode_name} for trial in trials]

    return run


@pytest.fixture(scope="module")
def custom(folder: Path) -> Any:
    """Run a sweep over modules of modules.py; return the rows of the view."""

    def run(names: str, mode: str, shape: str, *overrides: str) -> list[dict[str, Any]]:
        target = ",".join(f"modules.{name}" for name in names.split(","))
        model = ["model=custom", f"model.module._target_={target}", f"model.inputs.x.shape={shape}", f"mode={mode}"]
        sweep = effbench.sweep([*model, "protocol=quick", "protocol.host_tolerance=null", *overrides])
        with Store.open(sweep.db) as store:
            return store.results(sweep.id)

    return run


@pytest.fixture(scope="module")
def sweep_of_variants(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run a sweep over shipped models with other settings, each by a name of its own; return the view's rows.

    variants: by name, the shipped model, its module's settings and the shape of its input x, if another one.
    """
    folder = tmp_path_factory.mktemp("variants")
    (folder / "conf" / "model").mkdir(parents=True)

    def run(variants: dict[str, tuple], *overrides: str) -> list[dict[str, Any]]:
        for name, (model, settings, *shape) in variants.items():
            node = OmegaConf.load(shipped("conf") / "model" / f"{model}.yaml")
            node.name = name
            node.module.update(settings)
            if shape:
                node.inputs.x.shape = shape[0]
            OmegaConf.save(node, folder / "conf" / "model" / f"{name}.yaml")
        with contextlib.chdir(folder):
            sweep = effbench.sweep(
                [
                    "--config-dir=conf",
                    f"model={','.join(variants)}",
                    "protocol=quick",
                    "protocol.host_tolerance=null",
                    *overrides,
                ]
            )
            return sweep.results().to_dict("records")

    return run

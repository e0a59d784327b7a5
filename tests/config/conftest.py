"""Hydra's loader on effbench's configuration."""

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode

from effbench.config import plugins
from effbench.config.cells import resolve, split
from effbench.config.compose import Composer
from effbench.config.overrides import parse
from effbench.core.settings import shipped


@pytest.fixture(scope="session")
def loader():
    """The loader, and the master configuration of a sweep."""
    plugins.register()
    with initialize_config_dir(str(shipped("conf")), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        return loader, loader.load_configuration("config", [], run_mode=RunMode.MULTIRUN)


@pytest.fixture(scope="session")
def job_of(loader):
    """Overrides -> the job with them."""
    composer = Composer(*loader)
    return lambda words: composer.job([parse(word) for word in words])


@pytest.fixture(scope="session")
def compose(job_of):
    """Overrides -> the configuration that they compose to."""
    return lambda words: job_of(words).config


@pytest.fixture(scope="session")
def cell_of(job_of):
    """Overrides -> the cell that they plan on a machine without a GPU."""

    def planned(*words, has_cuda=False):
        parts, _ = split([job_of(words)])
        (cell,) = resolve(parts, has_cuda)
        return cell

    return planned

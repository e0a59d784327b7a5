"""What effbench registers with Hydra: its settings, the folder of --config-dir, and a launcher for
sweepers of other packages.

Hydra accepts only launchers from the namespace `hydra_plugins`. effbench's one is registered in
code under that name, so that nothing has to be installed and no other Hydra application sees it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from effbench.config.cells import conduct
from effbench.config.compose import Composer, Job
from effbench.config.overrides import parse
from effbench.core.settings import SETTINGS, Config
from effbench.run.sweep import Command, Outcome

#: The name of effbench's launcher and sweeper.
EFFBENCH = "effbench"
NAMESPACE = "hydra_plugins"
MODULE = f"{NAMESPACE}.{EFFBENCH}"


def register() -> None:
    """Register with Hydra what conf/config.yaml refers to, and the plugins."""
    plugins = Plugins.instance()
    if NAMESPACE not in sys.modules:  # no other plugin is installed
        sys.modules[NAMESPACE] = ModuleType(NAMESPACE)
        sys.modules[NAMESPACE].__path__ = []
    sys.modules[MODULE] = sys.modules[__name__]  # Hydra imports a launcher by its name
    plugins.register(FolderOfUser)
    plugins.register(EffbenchLauncher)
    store = ConfigStore.instance()
    launcher = {"_target_": f"{MODULE}.{EffbenchLauncher.__name__}"}
    store.store(EFFBENCH, launcher, group="hydra/launcher", provider=EFFBENCH)
    store.store(EFFBENCH, {}, group="hydra/sweeper", provider=EFFBENCH)
    store.store("schema", default_values(), provider=EFFBENCH)


def default_values() -> DictConfig:
    """Return the defaults of all settings. Users may add keys to open ones."""
    defaults = OmegaConf.create(dataclasses.asdict(Config()))
    for setting in SETTINGS.values():
        if setting.is_open:
            OmegaConf.set_struct(OmegaConf.select(defaults, setting.name), False)
    return defaults


class FolderOfUser(SearchPathPlugin):  # type: ignore[misc]  # Hydra has no types
    """Let Hydra find the YAML files in the folder of --config-dir. Hydra makes an object of this
    class whenever it starts."""

    path: str | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is not None:
            search_path.append(provider="command-line", path=f"file://{Path(self.path).absolute()}")


# --- sweepers that choose jobs by the results of earlier ones ---


@dataclass
class BatchedSweep:
    """A sweep whose jobs a sweeper chooses batch by batch. Hydra passes it to the launcher as its
    task function. `outcome`: of the last batch."""

    command: Command
    outcome: Outcome | None = None

    def __call__(self, jobs: Sequence[Job]) -> Outcome:
        """Run these jobs; later ones extend the sweep of the first ones."""
        command = self.command
        if self.outcome is not None:
            command = replace(command, extended_sweep=self.outcome.sweep_id)
        self.outcome = conduct(jobs, command)
        return self.outcome


class EffbenchLauncher(Launcher):  # type: ignore[misc]  # Hydra has no types
    """Run each batch of jobs that a sweeper such as Optuna chooses, and return their latencies as
    its objective."""

    __module__ = MODULE

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.run = task_function
        self.composer = Composer(hydra_context.config_loader, config)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        jobs = [self.composer.job([*map(parse, texts)]) for texts in job_overrides]
        returns = []
        for latency_ms in self.run(jobs).latencies:
            done = JobReturn(status=JobStatus.COMPLETED)
            done.return_value = latency_ms
            returns.append(done)
        return returns

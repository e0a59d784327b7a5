"""Hydra's face of effbench: a sweeper that hands the whole matrix over at once, and a launcher that runs it.

Hydra 1.3 accepts only classes of the namespace `hydra_plugins`; they are registered in code under that name, so that no
shim needs installing and no other Hydra application sees them.
"""

from __future__ import annotations

import importlib
import sys
import threading
import types
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from effbench.errors import UsageError
from effbench.sweeping.compose import Composer
from effbench.sweeping.conduct import Command, Outcome, conduct
from effbench.sweeping.progress import Progress
from effbench.sweeping.workers import ForkServer

MODULE = "hydra_plugins.effbench"
MOST_CELLS = 100_000  # their configurations alone take gigabytes
OTHER_LAUNCHER = "effbench runs cells through its own launcher: leave hydra/launcher and hydra.mode as they are"


class EffbenchSweeper(Sweeper):
    """Hydra's own product of overrides, without its folder, its log and its composing of each job for validation."""

    def __init__(self, params: dict[str, str] | None) -> None:
        self.params = params or {}

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )
        if not isinstance(self.launcher, EffbenchLauncher):
            raise UsageError(OTHER_LAUNCHER)

    def sweep(self, arguments: list[str]) -> Any:
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        overrides = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        refuse_endless(overrides)
        jobs = BasicSweeper.split_arguments(overrides, None)[0]
        return [self.launcher.launch(jobs, initial_job_idx=0)]


def refuse_endless(overrides: Sequence[Override]) -> None:
    """A range without an end, or one zero too many, must not fill the memory first. Raises UsageError."""
    cells = 1
    for override in overrides:
        value = override.value()
        if isinstance(value, RangeSweep):  # lists were typed, and end
            cells *= sum(1 for _ in islice(value.range(), MOST_CELLS + 1))
        elif isinstance(value, ChoiceSweep):
            cells *= len(value.list)
        if cells > MOST_CELLS:
            raise UsageError(
                f"{override.input_line}: that makes more than {MOST_CELLS:,} cells, the most that one sweep takes"
            )


class Session:
    """What one invocation shares between the command line and the launcher. One at a time in a process.

    `conductor`: what runs the configurations (`conduct`, or something of its signature around it). `server`: one to be
    used and left running; without it one is started and closed.
    """

    current: Session | None = None

    def __init__(
        self,
        command: Command,
        progress: Progress,
        conductor: Callable[..., Outcome | None] | None = None,
        server: ForkServer | None = None,
    ) -> None:
        self.command = command
        self.progress = progress
        self.conductor = conductor or conduct
        self.stop = threading.Event()
        self.borrowed = server
        self.server = server
        self.outcome: Outcome | None = None

    def __enter__(self) -> Session:
        Session.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Session.current = None
        if self.server and self.server is not self.borrowed:
            self.server.close()


class EffbenchLauncher(Launcher):
    """Composes all jobs, then conducts one sweep over them. Other sweepers (Optuna) get the latency as objective."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.hydra_context = hydra_context
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        session = Session.current
        assert session is not None, "the launcher runs below effbench.cli"
        if session.server is None and not all(map(names_interpreter, job_overrides)):
            session.server = ForkServer()  # starts while the jobs are composed
        composer = Composer(self.hydra_context.config_loader, self.config)
        configs = [composer.compose(overrides) for overrides in job_overrides]
        session.outcome = session.conductor(
            configs, session.command, session.server, session.progress, session.stop, extend=session.outcome
        )
        latencies = session.outcome.latencies if session.outcome else [None] * len(configs)
        return [
            JobReturn(overrides=list(overrides), status=JobStatus.COMPLETED, _return_value=latency)
            for overrides, latency in zip(job_overrides, latencies, strict=True)
        ]


def names_interpreter(overrides: Sequence[str]) -> bool:
    """Does this job say where it runs? Then effbench's own interpreter need not load torch."""
    return any(override.startswith(("python=", "folder=")) for override in overrides)


def register() -> None:
    """Make `hydra/launcher=effbench` and `hydra/sweeper=effbench` known."""
    try:
        parent = importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:  # a namespace package that exists only where some plugin is installed
        parent = sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        parent.__path__ = []
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    parent.effbench = module
    for plugin in (EffbenchLauncher, EffbenchSweeper):
        plugin.__module__ = MODULE
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)
    store = ConfigStore.instance()
    store.store(
        group="hydra/launcher", name="effbench", node={"_target_": f"{MODULE}.EffbenchLauncher"}, provider="effbench"
    )
    store.store(
        group="hydra/sweeper",
        name="effbench",
        node={"_target_": f"{MODULE}.EffbenchSweeper", "params": None},
        provider="effbench",
    )

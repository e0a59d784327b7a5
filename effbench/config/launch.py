"""Run a sweep through Hydra: a sweeper that passes the whole matrix at once to a launcher that runs
it.

The words of the command line become jobs, and a `Conductor` runs them: `conduct`, unless an
experiment, a duet or a dry run brings its own.

Hydra accepts only plugin classes from the namespace `hydra_plugins`. They are registered in code
under that name, so that nothing has to be installed and no other Hydra application sees them.
"""

from __future__ import annotations

import errno
import importlib
import logging
import os
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import ChoiceSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig

from effbench.config import overrides, refusals
from effbench.config.cells import Job, conduct, print_plan
from effbench.config.compose import Composer
from effbench.config.overrides import CONFIG_DIR, CommandLine, Word, parse
from effbench.core import settings as config
from effbench.core.errors import ConfigError, EffbenchError, UsageError
from effbench.core.labels import override_text
from effbench.core.logs import collected
from effbench.run import dry_run
from effbench.run.client import ForkServer
from effbench.run.progress import Progress
from effbench.run.sweep import Command, Outcome
from effbench.store.secrets import masked_db

LOGGER = logging.getLogger(__name__)
#: Runs the sweep of these jobs.
Conductor = Callable[[Sequence[Job], Command], Outcome | None]

#: The only namespace from which Hydra accepts plugins.
NAMESPACE = "hydra_plugins"
MODULE = f"{NAMESPACE}.effbench"
HYDRA_VERSION = "1.3"
#: With this variable Hydra raises errors; without it, it prints tracebacks and exits with code 1.
FULL_ERROR = "HYDRA_FULL_ERROR"
MOST_CELLS = 100_000  # their configurations alone take gigabytes
OTHER_LAUNCHER = "effbench runs cells only through its own launcher: do not override hydra/launcher"
#: Hydra's state is global, so that one sweep runs at a time.
RUNNING = threading.RLock()


def hydra_sweep(
    argv: list[str],
    quiet: bool = False,
    conductor: Conductor | None = None,
    server: ForkServer | None = None,
) -> Outcome | None:
    """Run the sweep of a command line through Hydra. Return None if nothing was run, for example
    with --cfg.

    `conductor`: called in place of `conduct`. `server`: used and not closed; None: start one if
    needed. Raises EffbenchError if the configuration is invalid.
    """
    line = overrides.expand(overrides.read([word for word in argv if word != dry_run.FLAG]))
    if line.config_dir is not None:
        overrides.refuse_hidden(line.config_dir)
    if conductor is None:
        conductor = print_plan if dry_run.FLAG in argv else conduct
    command = Command(
        argv,
        line.stored(),
        server,
        Progress(quiet=quiet),
    )
    try:
        with RUNNING, global_state(), collected():
            config.register()
            register()
            if line.prints_only:
                print_information(line, command)
                return None
            return run_sweeper(line, SweepTask(conductor, command))
    except EffbenchError:
        raise
    except Exception as error:
        # of a file, or of the output
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPIPE):
            raise
        raise refusals.explain(error) from error


@contextmanager
def global_state() -> Iterator[None]:
    """Afterwards restore the state of Hydra, which a program that uses Hydra itself needs, and of
    logging, which prints everything after --info."""
    log = logging.getLogger()
    level, handlers, raising = log.level, log.handlers[:], logging.raiseExceptions
    hydras, configs, runtime = GlobalHydra.instance(), HydraConfig.instance(), JobRuntime()
    outer, configuration, name = hydras.hydra, configs.cfg, runtime.get("name")
    hydras.clear()
    try:
        yield
    finally:
        log.setLevel(level)
        log.handlers[:] = handlers
        logging.raiseExceptions = raising
        GlobalHydra.instance().hydra = outer
        configs.cfg = configuration
        runtime.set("name", name)


@dataclass
class SweepTask:
    """What Hydra passes to the launcher as its task function: how the sweep is run, and how it
    ended, None before."""

    conduct: Conductor
    command: Command
    outcome: Outcome | None = None

    def __call__(self, _: object) -> None:
        raise UsageError(OTHER_LAUNCHER)  # another launcher calls it for each job

    def run(self, jobs: Sequence[Job]) -> Outcome | None:
        """Run these jobs, which extend the sweep of earlier ones: some sweepers choose jobs by
        previous results."""
        command = self.command
        if self.outcome is not None:
            command = replace(command, extended_sweep=self.outcome.sweep_id)
        self.outcome = self.conduct(jobs, command)
        return self.outcome


def run_sweeper(line: CommandLine, task: SweepTask) -> Outcome | None:
    """Compose the configuration of this command line, and let Hydra's sweeper choose the jobs.
    Return how the sweep ended."""
    FolderOfUser.path = line.config_dir
    folder = str(config.shipped("conf"))
    try:
        with hydra.initialize_config_dir(folder, job_name="effbench", version_base=HYDRA_VERSION):
            loader = GlobalHydra.instance().config_loader()
            of_hydra = [word.text for word in line.words if word.override.is_hydra_override()]
            master = loader.load_configuration("config", of_hydra, run_mode=RunMode.MULTIRUN)
            if master.hydra.launcher.get("_target_") != target_of(EffbenchLauncher):
                raise UsageError(OTHER_LAUNCHER)
            sweeper = Plugins.instance().instantiate_sweeper(
                hydra_context=HydraContext(config_loader=loader, callbacks=Callback()),
                task_function=task,
                config=master,
            )
            sweeper.sweep([word.text for word in line.words if word.text not in of_hydra])
    finally:
        FolderOfUser.path = None
    return task.outcome


def print_information(line: CommandLine, command: Command) -> None:
    """Let Hydra print what an option such as --cfg asks for."""
    task = SweepTask(lambda jobs, command: None, replace(command, progress=Progress(quiet=True)))
    if "--cfg=job" in line.options:  # refuse what a sweep refuses: Hydra checks no values
        run_sweeper(line, task)
    # none of the lines that --info logs becomes a traceback if a reader such as head ends
    logging.raiseExceptions = False
    arguments, variable = sys.argv, os.environ.get(FULL_ERROR)
    sys.argv = ["effbench", *line.options, *masked_db([word.text for word in line.words])]
    if line.config_dir is not None:
        sys.argv.append(f"{CONFIG_DIR}={line.config_dir}")
    os.environ[FULL_ERROR] = "1"
    folder = str(config.shipped("conf"))
    try:
        hydra.main(version_base=HYDRA_VERSION, config_path=folder, config_name="config")(task)()
    except SystemExit as end:
        if end.code not in (0, None):
            raise UsageError(
                "Hydra could not parse this command line (see above); see effbench --help"
            ) from end
    finally:
        sys.argv = arguments
        del os.environ[FULL_ERROR]
        if variable is not None:
            os.environ[FULL_ERROR] = variable


class FolderOfUser(SearchPathPlugin):  # type: ignore[misc]  # Hydra has no types
    """Let Hydra find the YAML files in the folder of --config-dir."""

    path: str | None = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if self.path is None:
            return
        folder = Path(self.path).absolute()
        if not folder.is_dir():
            raise ConfigError(f"--config-dir={self.path}: the folder {folder} was not found")
        search_path.append(provider="command-line", path=f"file://{folder}")


class EffbenchSweeper(Sweeper):  # type: ignore[misc]  # Hydra has no types
    """Hydra's product of overrides, without its output folder, its log and its validation of each
    job."""

    def __init__(self, params: dict[str, str] | None) -> None:
        self.params = params or {}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.loader: ConfigLoader = hydra_context.config_loader
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        defaults = [f"{key}={value}" for key, value in self.params.items()]
        texts: dict[str, list[str]] = {}
        for word in map(parse, [*defaults, *arguments]):
            key = word.override.get_key_element()
            check_repeated(word, key in texts)
            check_environment(word)
            texts[key] = [f"{key}={value}" for value in values_of(word, self.loader)]
            if prod(map(len, texts.values())) > MOST_CELLS:
                raise UsageError(
                    f"{word.text}: a sweep can have at most {MOST_CELLS:,} cells; split it"
                )
        words = [[*map(parse, values)] for values in texts.values()]
        return [self.launcher.run([*product(*words)])]


def values_of(word: Word, loader: ConfigLoader) -> list[str]:
    """Return the values that an override sweeps, or its only one. Raises Hydra's error for an
    interval, which other sweepers understand."""
    if not word.override.is_sweep_override():
        return [word.override.get_value_element_as_str()]
    override = replace(word.override, config_loader=loader)  # for the options of `glob`
    # a range may be infinite
    return list(islice(override.sweep_string_iterator(), MOST_CELLS + 1))


def check_repeated(word: Word, is_repeated: bool) -> None:
    """Raise UsageError for a mapping or `exclude` that is given twice, because only the last would
    count."""
    key = word.override.get_key_element()
    if is_repeated and (isinstance(word.override.value(), dict) or key == "exclude"):
        raise UsageError(
            f"{word.text}: {key} is given twice; write all its values as one, such as"
            " env={A:1,B:2} or 'exclude=[{bs:1},{mode:default}]'"
        )


def check_environment(word: Word) -> None:
    """Raise UsageError for an environment variable whose text Hydra changes: it reads 12.10 as the
    number 12.1."""
    if word.section != "env":
        return
    value = word.override.value()
    for choice in value.list if isinstance(value, ChoiceSweep) else [value]:
        for number in choice.values() if isinstance(choice, dict) else [choice]:
            passed = override_text(number)
            is_kept = re.search(rf"(?<![\w.+-]){re.escape(passed)}(?![\w.])", word.text)
            if isinstance(number, int | float) and not is_kept:
                raise UsageError(
                    f"{word.text} would set {passed}, because Hydra reads a value; quote it, as in"
                    " env.FOO='\"12.10\"'"
                )


class EffbenchLauncher(Launcher):  # type: ignore[misc]  # Hydra has no types
    """Compose all jobs, then run them as one sweep. Return latencies as the objective of sweepers
    such as Optuna."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        assert isinstance(task_function, SweepTask)
        self.task = task_function
        self.loader: ConfigLoader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs of another sweeper, whose overrides are text."""
        return self.run([[*map(parse, texts)] for texts in job_overrides])

    def run(self, jobs_words: Sequence[Sequence[Word]]) -> Sequence[JobReturn]:
        """Run jobs with these overrides."""
        composer = Composer(self.loader, self.config)
        jobs = [Job(words, composer.compose(words)) for words in jobs_words]
        LOGGER.info("composed the configurations of %d jobs", len(jobs))
        outcome = self.task.run(jobs)
        returns = []
        for index in range(len(jobs)):
            done = JobReturn(status=JobStatus.COMPLETED)
            done.return_value = outcome.latencies[index] if outcome else None
            returns.append(done)
        return returns


def target_of(plugin: type) -> str:
    return f"{MODULE}.{plugin.__name__}"


def register() -> None:
    """Register `hydra/launcher=effbench` and `hydra/sweeper=effbench` with Hydra."""
    module = plugin_module()
    for plugin in (FolderOfUser, EffbenchLauncher, EffbenchSweeper):
        plugin.__module__ = MODULE
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)
    store = ConfigStore.instance()
    launcher = {"_target_": target_of(EffbenchLauncher)}
    sweeper = {"_target_": target_of(EffbenchSweeper), "params": None}
    store.store("effbench", launcher, group="hydra/launcher", provider="effbench")
    store.store("effbench", sweeper, group="hydra/sweeper", provider="effbench")


def plugin_module() -> types.ModuleType:
    """Return the module for plugins in the namespace of Hydra's plugins."""
    try:
        parent = importlib.import_module(NAMESPACE)
    except ModuleNotFoundError:  # the namespace package exists only if a plugin is installed
        parent = sys.modules[NAMESPACE] = types.ModuleType(NAMESPACE)
        parent.__path__ = []
    module = sys.modules.setdefault(MODULE, types.ModuleType(MODULE))
    setattr(parent, MODULE.rpartition(".")[2], module)
    return module

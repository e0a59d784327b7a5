"""Run a sweep through Hydra: a sweeper that passes the whole matrix at once to a launcher that runs
it.

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
from itertools import islice, product
from math import prod
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobRuntime, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import RunMode
from omegaconf import DictConfig

from effbench import config
from effbench.errors import EffbenchError, UsageError
from effbench.launcher import errors, overrides
from effbench.launcher.cells import Job, conduct, print_plan
from effbench.launcher.compose import Composer
from effbench.launcher.expectations import check_override
from effbench.store.secrets import masked_db
from effbench.sweeping import forecast
from effbench.sweeping.client import ForkServer
from effbench.sweeping.progress import Progress
from effbench.sweeping.run import Command, Outcome

MODULE = "hydra_plugins.effbench"
RUNNING = threading.RLock()
#: With this variable Hydra raises errors; without it, it prints tracebacks and exits with code 1.
FULL_ERROR = "HYDRA_FULL_ERROR"
STATE = (GlobalHydra, HydraConfig, JobRuntime)
MOST_CELLS = 100_000  # their configurations alone take gigabytes
OTHER_LAUNCHER = (
    "effbench runs cells only through its own launcher: do not override hydra/launcher or"
    " hydra.mode"
)


def hydra_sweep(
    argv: list[str],
    quiet: bool = False,
    conductor: Callable[[Sequence[Job], Command], Outcome | None] | None = None,
    server: ForkServer | None = None,
) -> Outcome | None:
    """Run the sweep of a command line through Hydra. Return None if nothing was run, for example
    with --cfg.

    `conductor`: called in place of `conduct`. `server`: used and not closed; None: start one if
    needed. Raises EffbenchError if the configuration is invalid.
    """
    arranged = overrides.arrange([word for word in argv if word != forecast.FLAG])
    words, stored = overrides.expand(arranged)
    if any(overrides.key_of(word) == "hydra.mode" for word in words):
        raise UsageError(OTHER_LAUNCHER)
    overrides.refuse_hidden(words)
    # Hydra prints them, and runs nothing
    if is_shown := any(word.startswith(("--cfg", "--info")) for word in words):
        words = masked_db(words)
    config.register()
    register()
    bypassed = False

    def task(_: object) -> None:
        nonlocal bypassed
        bypassed = True

    # Hydra passes only its task function to the launcher, so the launcher's arguments are
    # attributes of it
    task.conduct = conductor or (print_plan if forecast.FLAG in argv else conduct)
    task.command = command = Command(argv, stored, server, Progress(quiet=quiet))
    try:
        with own_hydra(["effbench", *words]):
            # --info logs its lines: none becomes a traceback if a reader such as head ends
            logging.raiseExceptions = logging.raiseExceptions and not is_shown
            hydra.main(
                version_base="1.3", config_path=str(config.shipped("conf")), config_name="config"
            )(task)()
        if bypassed:
            raise UsageError(OTHER_LAUNCHER)
        return command.outcome
    except (EffbenchError, KeyboardInterrupt):
        raise
    except SystemExit as end:
        if end.code not in (0, None):
            raise UsageError(
                "Hydra could not parse this command line (see above); see effbench --help"
            ) from end
        return command.outcome
    except Exception as error:
        # of a file, or of the output
        if isinstance(error, OSError) and error.errno in (errno.EIO, errno.EPIPE):
            raise
        raise errors.explain(error, words) from error


@contextmanager
def own_hydra(argv: list[str]) -> Iterator[None]:
    """Run Hydra with these arguments, one sweep at a time, because its state is global. Afterwards
    restore the state, which a program that uses Hydra itself needs, and logging, which prints
    everything after --info."""
    with RUNNING:
        before, errors, log = sys.argv, os.environ.get(FULL_ERROR), logging.getLogger()
        level, handlers, raising = log.level, log.handlers[:], logging.raiseExceptions
        kept = {
            kind: Singleton._instances.pop(kind) for kind in STATE if kind in Singleton._instances
        }
        sys.argv, os.environ[FULL_ERROR] = argv, "1"
        # Hydra would compose everything once more to read hydra.mode, which is never another here
        get_mode, Hydra.get_mode = Hydra.get_mode, lambda *_, **__: RunMode.MULTIRUN
        try:
            yield
        finally:
            sys.argv, Hydra.get_mode = before, get_mode
            log.setLevel(level)
            log.handlers[:], logging.raiseExceptions = handlers, raising
            del os.environ[FULL_ERROR]
            if errors is not None:
                os.environ[FULL_ERROR] = errors
            Singleton._instances.update(kept)


class EffbenchSweeper(Sweeper):
    """Hydra's product of overrides, without its output folder, its log and its validation of each
    job."""

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
        parsed = parser.parse_overrides(
            [f"{key}={value}" for key, value in self.params.items()] + arguments
        )
        values: dict[str, list[str]] = {}
        for override in parsed:
            key = override.get_key_element()
            check_value(key, override, key in values)
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():  # a range may be infinite
                values[key] = [
                    f"{key}={value}"
                    for value in islice(override.sweep_string_iterator(), MOST_CELLS + 1)
                ]
            else:
                raise UsageError(
                    f"{override.input_line}: an interval requires a sweeper such as Optuna; list"
                    " values"
                )
            if prod(map(len, values.values())) > MOST_CELLS:
                raise UsageError(
                    f"{override.input_line}: a sweep can have at most {MOST_CELLS:,} cells;"
                    " split it"
                )
        return [
            self.launcher.launch(
                [list(job) for job in product(*values.values())], initial_job_idx=0
            )
        ]


def check_value(key: str, override: Override, is_repeated: bool) -> None:
    """Raise UsageError for a mapping or `exclude` that is given twice, because only the last would
    count, and for a value that Hydra would change or accept although it is wrong."""
    value = override.value()
    if is_repeated and isinstance(value, dict):
        raise UsageError(
            f"{override.input_line}: {key} is given twice; write all its keys as one:"
            f" {key}={{A:1,B:2}}"
        )
    if is_repeated and key == "exclude":
        raise UsageError(
            "exclude is given twice; write all its rules as one list:"
            " 'exclude=[{bs:1},{mode:default}]'"
        )
    choices = value.list if isinstance(value, ChoiceSweep) else [value]
    name = key.lstrip("+")
    check_override(name, choices)
    if name.partition(".")[0] == "env":
        check_environment(override, choices)


def check_environment(override: Override, choices: Sequence[Any]) -> None:
    """Raise UsageError for an environment variable whose text Hydra changes: it reads 12.10 as the
    number 12.1."""
    text = override.input_line.partition("=")[2].strip()
    name = override.get_key_element().lstrip("+")
    for choice in choices:
        values = choice.values() if isinstance(choice, dict) else [choice]
        for value in values:
            passed = str(value).lower() if isinstance(value, bool) else str(value)
            is_kept = re.search(rf"(?<![\w.+-]){re.escape(passed)}(?![\w.])", text) is not None
            if isinstance(value, int | float) and not is_kept:
                is_whole = value is override.value()
                exact = f"write {name}='\"{text}\"'" if is_whole else "quote it, as in '\"12.10\"'"
                raise UsageError(
                    f"{override.input_line} would set {passed}, because Hydra reads a value;"
                    f" {exact}"
                )


class EffbenchLauncher(Launcher):
    """Compose all jobs, then run them as one sweep. Return latencies as the objective of sweepers
    such as Optuna."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.task = task_function
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        command = self.task.command
        command.progress.planning(len(job_overrides), "composing their configurations")
        composer = Composer(self.loader, self.config)
        jobs = [Job(list(words), composer.compose(words)) for words in job_overrides]
        command.outcome = self.task.conduct(jobs, command)
        latencies = command.outcome.latencies if command.outcome else [None] * len(jobs)
        return [
            JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=latency)
            for job, latency in zip(jobs, latencies, strict=True)
        ]


def register() -> None:
    """Register `hydra/launcher=effbench` and `hydra/sweeper=effbench` with Hydra."""
    try:
        parent = importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:  # the namespace package exists only if a plugin is installed
        parent = sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        parent.__path__ = []
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    parent.effbench = module
    store = ConfigStore.instance()
    for kind, plugin, settings in (
        ("launcher", EffbenchLauncher, {}),
        ("sweeper", EffbenchSweeper, {"params": None}),
    ):
        plugin.__module__ = MODULE
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)
        node = {"_target_": f"{MODULE}.{plugin.__name__}", **settings}
        store.store(group=f"hydra/{kind}", name="effbench", node=node, provider="effbench")

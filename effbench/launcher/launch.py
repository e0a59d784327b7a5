"""A sweep through Hydra: a sweeper that hands over the whole matrix at once, and a launcher that runs it.

Hydra accepts only classes of the namespace `hydra_plugins`; they are registered in code under that name, so that
nothing needs installing and no other Hydra application sees them.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig

from effbench import config
from effbench.errors import EffbenchError, UsageError
from effbench.launcher import errors, overrides
from effbench.launcher.cells import INTERPRETER_KEYS, Job, conduct
from effbench.launcher.compose import Composer
from effbench.sweep import trust
from effbench.sweep.client import ForkServer
from effbench.sweep.progress import Progress
from effbench.sweep.record import Command
from effbench.sweep.run import Outcome

MODULE = "hydra_plugins.effbench"
MOST_CELLS = 100_000  # their configurations alone take gigabytes
OTHER_LAUNCHER = "effbench runs cells through its own launcher: leave hydra/launcher and hydra.mode as they are"


@dataclass
class Session:
    """What the launcher needs of one invocation; it travels on Hydra's task function. `outcome`: of the last launch."""

    command: Command
    progress: Progress
    conductor: Callable[..., Outcome | None]
    server: ForkServer | None
    stop: threading.Event
    outcome: Outcome | None = None


def hydra_sweep(
    argv: list[str],
    quiet: bool = False,
    commands: Collection[str] = (),
    progress: Progress | None = None,
    conductor: Callable[..., Outcome | None] | None = None,
    server: ForkServer | None = None,
) -> Outcome | None:
    """Run the sweep of a command line through Hydra. Returns None if Hydra only printed something (or the conductor ran
    nothing).

    `commands`: suggested if a word is no override. `conductor`: called in place of `conduct`. `server`: one to use and
    leave running; without it one is started and closed. Raises EffbenchError if the configuration is invalid.
    """
    # Hydra's own error printing exits with 1 and shows tracebacks; this makes it raise instead
    os.environ["HYDRA_FULL_ERROR"] = "1"
    arranged = overrides.arrange([word for word in argv if word != trust.FLAG], commands)
    words, stored = overrides.expand(arranged, trust.FLAG in argv)
    if any(overrides.key_of(word) == "hydra.mode" for word in words):
        raise UsageError(OTHER_LAUNCHER)
    overrides.refuse_hidden(words)
    config.register()
    register()
    progress = progress or Progress(quiet=quiet)
    session = Session(Command(argv, stored), progress, conductor or conduct, server, threading.Event())
    bypassed = False

    def task(_: object) -> None:
        nonlocal bypassed
        bypassed = True

    task.session = session  # type: ignore[attr-defined]
    before = sys.argv
    sys.argv = ["effbench", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(config.shipped("conf")), config_name="config")(task)()
        if bypassed:
            raise UsageError(OTHER_LAUNCHER)
        return session.outcome
    except (EffbenchError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as end:
        if end.code not in (0, None):
            raise UsageError("Hydra could not read this command line (see above); effbench --help") from end
        return session.outcome
    except Exception as error:
        raise errors.explain(error, words) from error
    finally:
        sys.argv = before
        if session.server is not None and session.server is not server:
            session.server.close()


class EffbenchSweeper(Sweeper):
    """Hydra's product of overrides, without its folder, its log and its composing of each job for validation."""

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
        parsed = parser.parse_overrides([f"{key}={value}" for key, value in self.params.items()] + arguments)
        refuse_endless(parsed)
        values: dict[str, list[str]] = {}
        for override in parsed:
            key = override.get_key_element()
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():
                values[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
            else:
                raise UsageError(f"{override.input_line}: only a sweeper that chooses values takes an interval")
        return [self.launcher.launch([list(job) for job in product(*values.values())], initial_job_idx=0)]


def refuse_endless(parsed: Sequence[Override]) -> None:
    """Raise UsageError for a range without an end, or one zero too many, before it fills the memory."""
    cells = 1
    for override in parsed:
        value = override.value()
        if isinstance(value, RangeSweep):  # lists were typed, and end
            cells *= sum(1 for _ in islice(value.range(), MOST_CELLS + 1))
        elif isinstance(value, ChoiceSweep):
            cells *= len(value.list)
        if cells > MOST_CELLS:
            raise UsageError(
                f"{override.input_line}: that makes more than {MOST_CELLS:,} cells, the most that one sweep takes"
            )


class EffbenchLauncher(Launcher):
    """Composes all jobs, then conducts one sweep over them. Other sweepers (Optuna) get the latency as objective."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.session: Session = task_function.session
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        session = self.session
        if session.server is None and not all(map(names_interpreter, job_overrides)):
            session.server = ForkServer()  # starts while the jobs are composed
        composer = Composer(self.loader, self.config)
        jobs = [Job(list(words), composer.compose(words)) for words in job_overrides]
        session.outcome = session.conductor(
            jobs, session.command, session.server, session.progress, session.stop, extend=session.outcome
        )
        latencies = session.outcome.latencies if session.outcome else [None] * len(jobs)
        return [
            JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=latency)
            for job, latency in zip(jobs, latencies, strict=True)
        ]


def names_interpreter(words: Sequence[str]) -> bool:
    """Return whether this job names its interpreter: effbench's own need not load torch then."""
    return any(overrides.key_of(word) in INTERPRETER_KEYS for word in words)


def register() -> None:
    """Make `hydra/launcher=effbench` and `hydra/sweeper=effbench` known."""
    try:
        parent = importlib.import_module("hydra_plugins")
    except ModuleNotFoundError:  # a namespace package that exists only if some plugin is installed
        parent = sys.modules["hydra_plugins"] = types.ModuleType("hydra_plugins")
        parent.__path__ = []
    module = sys.modules[MODULE] = types.ModuleType(MODULE)
    parent.effbench = module
    store = ConfigStore.instance()
    for kind, plugin, settings in (("launcher", EffbenchLauncher, {}), ("sweeper", EffbenchSweeper, {"params": None})):
        plugin.__module__ = MODULE
        setattr(module, plugin.__name__, plugin)
        Plugins.instance().register(plugin)
        node = {"_target_": f"{MODULE}.{plugin.__name__}", **settings}
        store.store(group=f"hydra/{kind}", name="effbench", node=node, provider="effbench")

"""A sweep through Hydra: a sweeper that hands over the whole matrix at once, and a launcher that runs it.

Hydra composes a configuration in about 50 ms. A sweep's jobs mostly differ in plain values, so one composition is made
for each distinct choice of groups, and the other overrides are applied to a copy of it.

Hydra accepts only classes of the namespace `hydra_plugins`; they are registered in code under that name, so that
nothing needs installing and no other Hydra application sees them.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import islice, product
from math import prod
from typing import Any

import hydra
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, OmegaConf, open_dict

from effbench import config, streams
from effbench.errors import EffbenchError, UsageError
from effbench.launcher import errors, overrides
from effbench.launcher.cells import Job, conduct
from effbench.sweeping.client import ForkServer
from effbench.sweeping.progress import Progress
from effbench.sweeping.resume import FLAG
from effbench.sweeping.run import Command, Outcome

MODULE = "hydra_plugins.effbench"
MOST_CELLS = 100_000  # their configurations alone take gigabytes
OTHER_LAUNCHER = "effbench runs cells through its own launcher: leave hydra/launcher and hydra.mode as they are"
#: A list would lay one option over the other.
ONE_OPTION = ("model", "stream", "mode", "protocol", "executor")


def hydra_sweep(
    argv: list[str],
    quiet: bool = False,
    conductor: Callable[..., Outcome | None] | None = None,
    server: ForkServer | None = None,
) -> Outcome | None:
    """Run the sweep of a command line through Hydra. Return None if nothing was run, as with --help.

    `conductor`: called in place of `conduct`. `server`: one to use and leave running; None: one is started if needed.
    Raises EffbenchError if the configuration is invalid.
    """
    # Hydra's own error printing exits with 1 and shows tracebacks; this makes it raise instead
    os.environ["HYDRA_FULL_ERROR"] = "1"
    arranged = overrides.arrange([word for word in argv if word != FLAG])
    words, stored = overrides.expand(arranged, FLAG in argv)
    if any(overrides.key_of(word) == "hydra.mode" for word in words):
        raise UsageError(OTHER_LAUNCHER)
    overrides.refuse_hidden(words)
    config.register()
    register()
    bypassed = False

    def task(_: object) -> None:
        nonlocal bypassed
        bypassed = True

    # what the launcher needs travels on Hydra's task function
    progress, stop = Progress(quiet=quiet), threading.Event()
    task.conduct = partial(
        conductor or conduct, command=Command(argv, stored), server=server, progress=progress, stop=stop
    )
    task.outcome = None  # of the last launch
    before = sys.argv
    sys.argv = ["effbench", *words]
    try:
        hydra.main(version_base="1.3", config_path=str(config.shipped("conf")), config_name="config")(task)()
        if bypassed:
            raise UsageError(OTHER_LAUNCHER)
        return task.outcome
    except (EffbenchError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as end:
        if end.code not in (0, None):
            raise UsageError("Hydra could not read this command line (see above); effbench --help") from end
        return task.outcome
    except Exception as error:
        raise errors.explain(error) from error
    finally:
        sys.argv = before


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
        values: dict[str, list[str]] = {}
        for override in parsed:
            key = override.get_key_element()
            if not override.is_sweep_override():
                values[key] = [f"{key}={override.get_value_element_as_str()}"]
            elif override.is_discrete_sweep():  # a range may be endless
                values[key] = [f"{key}={value}" for value in islice(override.sweep_string_iterator(), MOST_CELLS + 1)]
            else:
                raise UsageError(f"{override.input_line}: only a sweeper that chooses values takes an interval")
            if prod(map(len, values.values())) > MOST_CELLS:
                raise UsageError(f"{override.input_line}: more than {MOST_CELLS:,} cells, the most that a sweep takes")
        return [self.launcher.launch([list(job) for job in product(*values.values())], initial_job_idx=0)]


class EffbenchLauncher(Launcher):
    """Composes all jobs, then conducts one sweep over them. Other sweepers (Optuna) get the latency as objective."""

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.task = task_function
        self.loader = hydra_context.config_loader
        self.config = config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        composer = Composer(self.loader, self.config)
        jobs = [Job(list(words), composer.compose(words)) for words in job_overrides]
        self.task.outcome = self.task.conduct(jobs, extend=self.task.outcome)
        latencies = self.task.outcome.latencies if self.task.outcome else [None] * len(jobs)
        return [
            JobReturn(overrides=job.overrides, status=JobStatus.COMPLETED, _return_value=latency)
            for job, latency in zip(jobs, latencies, strict=True)
        ]


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


class Composer:
    """Composes the jobs of one sweep: by Hydra for each distinct choice of groups; other overrides are laid over it."""

    def __init__(self, config_loader: ConfigLoader, master: DictConfig) -> None:
        self.loader = config_loader
        self.master = master
        self.parse = cache(OverridesParser.create(config_loader=config_loader).parse_override)
        self.options_of = cache(config_loader.get_group_options)
        self.composed: dict[tuple[str, ...], DictConfig] = {}

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return one job's configuration as plain, resolved values, without Hydra's own part.

        Raises Hydra's and OmegaConf's errors if it cannot be composed, ConfigError for a value of the wrong type.
        """
        parsed = [self.parse(word) for word in words]
        choices = [override for override in parsed if self.is_choice(override)]
        for override in choices:
            if override.key_or_group in ONE_OPTION and isinstance(override.value(), list):
                raise errors.wrong_type(str(override.input_line), "of type 'list'")
        key = tuple(str(override.input_line) for override in choices)
        if key not in self.composed:
            self.composed[key] = self.compose_with_hydra(key)
        composed = copy.deepcopy(self.composed[key])
        # Hydra has no public function that does this to a composed configuration
        self.loader._apply_overrides_to_config([one for one in parsed if one not in choices], composed)
        use_largest_size(composed, given=any(override.key_or_group == "bs" for override in parsed))
        plain = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True, enum_to_str=True)
        assert isinstance(plain, dict)
        return plain

    def compose_with_hydra(self, choices: Sequence[str]) -> DictConfig:
        composed = self.loader.load_sweep_config(self.master, list(choices))
        OmegaConf.set_readonly(composed, False)
        # named after its file: a user's file that builds on a shipped protocol is another protocol
        composed.protocol.name = composed.hydra.runtime.choices.get("protocol") or composed.protocol.name
        with open_dict(composed):
            del composed["hydra"]
        return composed

    def is_choice(self, override: Override) -> bool:
        """Return whether the override chooses an option of a group, or is Hydra's own."""
        key = override.key_or_group
        is_option = not isinstance(override.value(), dict) and bool(self.options_of(key))
        return is_option or override.package is not None or key.partition(".")[0] == "hydra"


def use_largest_size(composed: DictConfig, given: bool) -> None:
    """Set `bs` to the largest size of a stream, before `${bs}` is resolved. Raises ConfigError if another was given."""
    node = OmegaConf.select(composed, "stream")
    settings = None if node is None else OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    sizes = streams.sizes_of(settings) if settings else None
    if sizes is not None:
        is_set = given or composed.bs != config.Config.bs
        composed.bs = streams.batch_size(sizes, composed.bs if is_set else None)

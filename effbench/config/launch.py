"""From a command line to its jobs, and to the sweep that runs them.

effbench composes the whole matrix, then runs or prints it. A sweeper of another package may choose
jobs by the results of earlier ones, so Hydra itself runs its sweep: see `run_sweeper`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.core.utils import JobRuntime, env_override
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import HydraContext

from effbench.config.cells import conduct, print_plan
from effbench.config.compose import Composer, Job
from effbench.config.matrix import matrix
from effbench.config.overrides import CommandLine, check_folder, expand, read
from effbench.config.plugins import EFFBENCH, BatchedSweep, FolderOfUser, register
from effbench.config.refusals import explain
from effbench.core.errors import EffbenchError, UsageError
from effbench.core.settings import shipped
from effbench.run.client import ForkServer
from effbench.run.progress import Progress
from effbench.run.sweep import Command, Outcome
from effbench.store.secrets import masked_db

LOGGER = logging.getLogger(__name__)
HYDRA_VERSION = "1.3"
CONF = str(shipped("conf"))
#: Hydra's state is global, so that one sweep runs at a time.
RUNNING = threading.RLock()


def hydra_sweep(
    argv: Sequence[str], quiet: bool = False, server: ForkServer | None = None
) -> Outcome | None:
    """Run the sweep of a command line. Return None if it runs nothing, but prints the plan or what
    an option such as --cfg asks for.

    `server`: used and not closed; None: start one if needed. Raises EffbenchError if the
    configuration is invalid.
    """
    line = expand(read(argv))
    command = Command(argv, line.stored(), server, Progress(quiet=quiet))
    with RUNNING:
        if line.prints_only:
            print_information(line)
            return None
        if line.is_dry_run:
            print_plan(jobs_of(line), command)
            return None
        if line.values.get("hydra/sweeper", EFFBENCH) != EFFBENCH:
            return run_sweeper(line, command)
        return conduct(jobs_of(line), command)


def jobs_of(line: CommandLine) -> list[Job]:
    """Return all jobs of a command line: the product of the values of its overrides. Raises
    EffbenchError if one is invalid."""
    with composer_of(line) as composer:
        words = [word for word in line.words if not word.is_for_hydra]
        jobs = [composer.job(chosen) for chosen in matrix(words, composer.loader)]
    LOGGER.info("composed the configurations of %d jobs", len(jobs))
    return jobs


def run_sweeper(line: CommandLine, command: Command) -> Outcome | None:
    """Run the sweep of another sweeper, which passes the jobs of each batch to EffbenchLauncher.
    Return how the last batch ended."""
    sweep = BatchedSweep(command)
    with composer_of(line) as composer:
        sweeper = Plugins.instance().instantiate_sweeper(
            hydra_context=HydraContext(config_loader=composer.loader, callbacks=Callback()),
            task_function=sweep,
            config=composer.master,
        )
        sweeper.sweep([word.text for word in line.words if not word.is_for_hydra])
    return sweep.outcome


def print_information(line: CommandLine) -> None:
    """Let Hydra print what an option such as --cfg asks for."""
    if "--cfg=job" in line.options:  # refuse what a sweep refuses: Hydra checks no values
        jobs_of(line)
    main = hydra.main(version_base=HYDRA_VERSION, config_path=CONF, config_name="config")
    with hydra_state(line), env_override({"HYDRA_FULL_ERROR": "1"}), suppress(SystemExit):
        # none of the lines that --info logs becomes a traceback if a reader such as head ends
        logging.raiseExceptions = False
        sys.argv = [EFFBENCH, *line.options, *masked_db([word.text for word in line.words])]
        main(hydra_sweep)()  # Hydra prints instead of calling it


@contextmanager
def composer_of(line: CommandLine) -> Iterator[Composer]:
    """Start Hydra for a command line, and yield the composer of its jobs."""
    if line.values.get("hydra/launcher", EFFBENCH) != EFFBENCH:
        raise UsageError(
            "effbench runs cells only through its own launcher: do not override hydra/launcher"
        )
    with (
        hydra_state(line),
        hydra.initialize_config_dir(CONF, job_name=EFFBENCH, version_base=HYDRA_VERSION),
    ):
        words = [word.text for word in line.words if word.is_for_hydra]
        master = hydra.compose("config", words, return_hydra_config=True)
        yield Composer(GlobalHydra.instance().config_loader(), master)


@contextmanager
def hydra_state(line: CommandLine) -> Iterator[None]:
    """Give Hydra a state for this command line. Afterwards restore what it changes, which a program
    that uses Hydra itself needs. Raises ConfigError for an error of Hydra."""
    state, runtime, log = GlobalHydra.instance(), JobRuntime(), logging.getLogger()
    with ExitStack() as restored:
        restored.callback(GlobalHydra.set_instance, state)
        restored.callback(setattr, state, "hydra", state.hydra)
        restored.callback(runtime.set, "name", runtime.get("name"))
        restored.callback(setattr, FolderOfUser, "path", FolderOfUser.path)
        # by print_information
        restored.callback(setattr, sys, "argv", sys.argv)
        restored.callback(setattr, logging, "raiseExceptions", logging.raiseExceptions)
        restored.callback(setattr, log, "handlers", log.handlers[:])
        restored.callback(log.setLevel, log.level)
        state.clear()
        register()
        if line.config_dir is not None:
            check_folder(line.config_dir)
        FolderOfUser.path = line.config_dir
        try:
            yield
        except EffbenchError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, HydraException):
                raise  # of a file, or of the output
            raise explain(error) from error

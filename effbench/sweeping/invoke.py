"""From the words of a command line to a sweep, through Hydra."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from typing import Any

from effbench import config
from effbench.config import shipped
from effbench.errors import EffbenchError, UsageError
from effbench.sweeping.conduct import Command, Outcome
from effbench.sweeping.progress import Progress


def hydra_sweep(
    argv: list[str],
    quiet: bool = False,
    commands: Collection[str] = (),
    progress: Progress | None = None,
    **session_options: Any,
) -> Outcome | None:
    """Hand `argv` to Hydra. Returns the sweep's Outcome, None where Hydra only printed something (or a conductor ran
    nothing).

    `commands`: those to suggest where a word is no override; `session_options`: `conductor` and `server` of
    `hydra_plugin.Session`. Raises EffbenchError for all that is wrong with the configuration.
    """
    # its own error printing exits with 1 and shows tracebacks; this makes Hydra raise instead
    os.environ["HYDRA_FULL_ERROR"] = "1"
    import hydra

    from effbench.sweeping import arguments, hydra_errors, hydra_plugin, resume, trust

    arranged = arguments.arrange([word for word in argv if word != trust.FLAG], commands)
    words, stored = resume.expand(arranged, trust.FLAG in argv)
    if any(word.lstrip("+").startswith("hydra.mode=") for word in words):
        raise UsageError(hydra_plugin.OTHER_LAUNCHER)
    arguments.refuse_hidden(words)
    bypassed = False
    config.register()
    hydra_plugin.register()

    @hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="config")
    def task(_: object) -> None:
        nonlocal bypassed
        bypassed = True

    before = sys.argv
    sys.argv = ["effbench", *words]
    try:
        with hydra_plugin.Session(
            Command(argv, stored), progress or Progress(quiet=quiet), **session_options
        ) as session:
            task()
            if bypassed:
                raise UsageError(hydra_plugin.OTHER_LAUNCHER)
            return session.outcome
    except (EffbenchError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as end:
        if end.code not in (0, None):
            raise UsageError("Hydra could not read this command line (see above); effbench --help") from end
        return session.outcome
    except Exception as error:
        raise hydra_errors.explain(error, words) from error
    finally:
        sys.argv = before

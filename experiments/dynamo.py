"""Do reset() and log_level of Dynamo do what is claimed about them?"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from effbench.claims._tools import Counting, attempt, error_facts
from torch._dynamo.utils import counters

from effbench.claims import Answer, Claim
from effbench.claims.checks import Facts, check

GPU_SECONDS = 10


@check()
def reset(device: torch.device) -> Facts:
    """Compare Dynamo's counters before and after torch._dynamo.reset(), and check whether it
    discards compiled code."""
    return observe_reset(device, torch._dynamo.reset)


def observe_reset(device: torch.device, reset: Callable[[], Any]) -> Facts:
    torch._dynamo.reset()
    counters.clear()
    backend = Counting()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    compiled = torch.compile(function, backend=backend)
    x = torch.ones(2, device=device)
    compiled(x)
    before, graphs = snapshot(), len(backend.graphs)
    reset()
    after = snapshot()
    compiled(x)
    graphs_again = len(backend.graphs) - graphs
    last = snapshot()
    counters.clear()
    return {
        "counters_before": before,
        "counters_after_reset": after,
        "reset_clears_the_counters": bool(before) and not after,
        "compiled_again_after_reset": graphs_again == graphs,
        "counters_after_compiling_again": last,
        "clear_clears_the_counters": not snapshot(),
    }


def snapshot() -> dict[str, dict[str, int]]:
    """Return the nonzero counters of Dynamo's own groups, with the first lines of reasons."""
    nonzero: dict[str, dict[str, int]] = {}
    for group in ("stats", "graph_break", "frames"):
        for name, count in counters[group].items():
            if count:
                nonzero.setdefault(group, {})[str(name).split("\n")[0]] = int(count)
    return nonzero


@check()
def level(device: torch.device) -> Facts:
    """Check whether torch._dynamo.config.log_level can be read and set, and what does set the level
    of Dynamo's log."""
    config = torch._dynamo.config
    read = attempt(lambda: config.log_level)
    written = attempt(setattr, config, "log_level", logging.INFO)
    # only names, because reading all values would include deprecated settings
    names = getattr(config, "_config", vars(config))
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    try:
        # the same as TORCH_LOGS="+dynamo"
        asked = attempt(torch._logging.set_logs, dynamo=logging.DEBUG)
        raised = logger.isEnabledFor(logging.DEBUG)
        torch._logging.set_logs(dynamo=logging.WARNING)
        lowered = not logger.isEnabledFor(logging.DEBUG)
    finally:
        torch._logging.set_logs()
        logger.setLevel(level)
    return {
        "log_level_exists": read.succeeded,
        **{f"read_{key}": value for key, value in error_facts(read.raised).items()},
        "log_level_can_be_set": written.succeeded,
        **{f"set_{key}": value for key, value in error_facts(written.raised).items()},
        "settings_about_logging": sorted(
            name for name in names if "log" in name or "verbose" in name
        ),
        "set_logs_changes_the_level": asked.succeeded and raised and lowered,
        "set_logs_arguments": list(inspect.signature(torch._logging.set_logs).parameters)[:12],
    }


@Claim("S9", "torch._dynamo.reset() resets the counters.")
def s9(reset):
    also = {
        "it throws compiled code away": reset.compiled_again_after_reset,
        "counters.clear() clears them": reset.clear_clears_the_counters,
    }
    return Answer(reset.reset_clears_the_counters, also=also)


@Claim("S10", "torch._dynamo.config.log_level sets the level of the log.")
def s10(level):
    also = {
        "reading it raises": level.read_error,
        "torch._logging.set_logs sets it": level.set_logs_changes_the_level,
    }
    return Answer(level.log_level_exists, also=also)

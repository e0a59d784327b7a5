"""S9, S10: what torch._dynamo.reset() resets, and how its log level is set."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.utils import counters

from effbench.evidence.base import Counting, Facts, attempt, error_facts, shows


@shows("S9")
def reset_and_counters(device: torch.device) -> Facts:
    """Dynamo's counters before and after torch._dynamo.reset(), and whether compiled code is gone after it."""
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
    """What is not zero of Dynamo's own groups; reasons are cut to their first line."""
    found: dict[str, dict[str, int]] = {}
    for group in ("stats", "graph_break", "frames"):
        for name, count in counters[group].items():
            if count:
                found.setdefault(group, {})[str(name).split("\n")[0]] = int(count)
    return found


@shows("S10")
def log_level(device: torch.device) -> Facts:
    """Whether torch._dynamo.config.log_level can be read and set, and what does set the level of Dynamo's log."""
    return observe_log_level(torch._dynamo.config)


def observe_log_level(config: Any) -> Facts:
    read = attempt(lambda: config.log_level)
    written = attempt(setattr, config, "log_level", logging.INFO)
    # the names alone: reading all values meets deprecated ones
    names = getattr(config, "_config", vars(config))
    logger = logging.getLogger("torch._dynamo")
    level = logger.level
    try:
        # what TORCH_LOGS="+dynamo" does
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
        "settings_about_logging": sorted(name for name in names if "log" in name or "verbose" in name),
        "set_logs_changes_the_level": asked.succeeded and raised and lowered,
        "set_logs_arguments": list(inspect.signature(torch._logging.set_logs).parameters)[:12],
    }

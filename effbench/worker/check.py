"""The task `check`: call a function that tests a behaviour, in a separate process."""

from __future__ import annotations

import json
from typing import Any

import torch

from effbench.core.cell import Status
from effbench.core.errors import UnsupportedError
from effbench.core.message import CheckRequest, Json, MessagePipe
from effbench.models.build import resolve_target, set_seed
from effbench.modes import inductor
from effbench.modes.base import needs_compiler
from effbench.worker import failures

#: Requirements that a check may declare.
CUDA, COMPILER, CPP_COMPILER = "CUDA", "a compiler", "a C++ compiler"


def run_task(payload: Json, pipe: MessagePipe) -> Json:
    """Run the check of a CheckRequest as JSON. Return {"status": ok, unsupported, error or oom,
    "reason", "facts"}, and "traceback" for an error."""
    request = CheckRequest(**payload)
    answer: dict[str, Any] = {"status": Status.OK.value, "reason": None, "facts": None}
    try:
        pipe.send(phase="importing")
        function = resolve_target(request.target)
        device = torch.device(request.device)
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UnsupportedError("device=cuda, but torch sees no CUDA device")
        needs = getattr(function, "needs", ())
        for need in needs:
            reason = unmet(need, device)
            if reason is not None:
                raise UnsupportedError(reason)
        if CPP_COMPILER in needs or (COMPILER in needs and device.type == "cpu"):
            inductor.learn_vector_instructions()
        inductor.use_caches_in(request.cache_dir)
        set_seed(request.seed)
        pipe.send(phase="running")
        answer["facts"] = checked_facts(function(device, **request.settings))
    except BaseException as error:  # user code may raise anything
        status, answer["reason"] = failures.classify(error, None)
        answer["status"] = status.value
        if status is Status.ERROR:
            answer["traceback"] = failures.traceback_tail(error)
    return answer


def unmet(need: str, device: torch.device) -> str | None:
    """Return why the machine lacks what a check needs, or None."""
    if need != CUDA:
        return needs_compiler(torch.device("cpu") if need == CPP_COMPILER else device)
    if device.type == "cuda":
        return None
    return f"it needs CUDA, but this runs on {device.type}"


def compile_sample(device: torch.device) -> dict[str, Any]:
    """Compile and run a small function on the device, to test the compiler. Raises what Inductor
    raises."""
    # precompiled headers only pay back with more functions
    with torch._inductor.config.patch(cpp_cache_precompile_headers=False):
        torch.compile(torch.sin)(torch.ones(8, device=device))
    return {}


def checked_facts(facts: Any) -> Json:
    """Return the facts. Raises TypeError for facts that JSON cannot represent."""
    if not isinstance(facts, dict):
        raise TypeError(f"a check must return a dict of facts, got {type(facts).__name__}")
    try:
        json.dumps(facts, allow_nan=False)
    except (TypeError, ValueError) as error:
        # not a line of Python's encoder
        raise TypeError(f"the facts are not plain JSON: {error}") from None
    return facts

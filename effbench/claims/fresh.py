"""Call a function in a new interpreter, for actions that are possible only once per process, or
that break it.

`python -m effbench.claims.fresh` is the other end: it reads a line of JSON and answers with
one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-P", "-m", "effbench.claims.fresh")


def in_fresh_process(
    function: Callable[..., dict[str, Any]],
    device: Any,
    hide: Sequence[str] = (),
    timeout_s: float = 180.0,
    **settings: Any,
) -> dict[str, Any]:
    """Call a function of an experiment's file in a new interpreter that does not find the packages
    `hide`.

    Return `{"succeeded", "error_type", "error"}` and its facts; if the interpreter dies or hangs,
    it did not succeed.
    """
    file = function.__code__.co_filename
    order = json.dumps([file, function.__name__, str(device), list(hide), settings])
    root = str(Path(__file__).resolve().parents[2])
    search_path = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(search_path)}
    try:
        done = subprocess.run(
            COMMAND, input=order, capture_output=True, env=env, text=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return failed("timeout", f"not done after {timeout_s:g} s")
    if done.stdout:
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts
    died = f"exited with code {done.returncode}"
    if done.returncode < 0:
        died = f"killed by {signal.Signals(-done.returncode).name}"
    lines = done.stderr.strip().splitlines() or ["no message"]
    return failed(died, lines[-1])


def failed(error_type: str, error: str) -> dict[str, Any]:
    return {"succeeded": False, "error_type": error_type, "error": error}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # printed text must not mix with the answer
    file, name, device, hide, settings = json.load(sys.stdin)
    for package in hide:
        # None makes the import fail
        sys.modules[package] = None  # type: ignore[assignment]
    import torch

    from effbench.claims.checks import attempt
    from effbench.claims.definition import execute

    torch.manual_seed(0)
    function = getattr(execute(Path(file)), name)
    done = attempt(function, torch.device(device), **settings)
    answer.write(json.dumps({**done.facts(), **(done.value or {})}))
    answer.flush()
    sys.stderr.flush()
    os._exit(0)  # a CUDA context that a failed capture left behind may block a normal exit


if __name__ == "__main__":
    main()

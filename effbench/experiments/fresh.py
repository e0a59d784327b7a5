"""Calls a function in a new interpreter: for actions that are possible once per process, or break it.

`python -m effbench.experiments.fresh` is the other end: it reads one line of JSON and answers one.
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

TIMEOUT_S = 180.0


def in_fresh_process(
    function: Callable[..., dict[str, Any]],
    device: Any,
    hide: Sequence[str] = (),
    timeout_s: float = TIMEOUT_S,
    **settings: Any,
) -> dict[str, Any]:
    """Call a function of an experiment's file in a new interpreter.

    Return `{"succeeded", "error_type", "error"}` and its facts; one that dies or hangs has not succeeded. `hide`:
    packages that the interpreter shall not find.
    """
    root = str(Path(__file__).resolve().parents[2])
    order = {
        "file": function.__code__.co_filename,
        "function": function.__name__,
        "device": str(device),
        "hide": list(hide),
        "settings": settings,
    }
    search_path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "effbench.experiments.fresh"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": search_path},
        text=True,
    ) as process:
        try:
            out, err = process.communicate(json.dumps(order), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"succeeded": False, "error_type": "timeout", "error": f"not done after {timeout_s:g} s"}
        except BaseException:
            process.kill()
            raise
    if out:
        return json.loads(out)
    code = process.returncode
    died = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    last = (err.strip() or "no message").splitlines()[-1]
    return {"succeeded": False, "error_type": died, "error": last}


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed must not reach the answer
    order = json.load(sys.stdin)
    for name in order["hide"]:
        sys.modules[name] = None  # type: ignore[assignment] - the import system's own way to say: not there
    import torch

    from effbench.experiments.checks import attempt
    from effbench.experiments.definition import execute

    torch.manual_seed(0)
    function = getattr(execute(Path(order["file"])), order["function"])
    done = attempt(function, torch.device(order["device"]), **order["settings"])
    answer.write(json.dumps({**done.facts(), **(done.value or {})}))
    answer.flush()
    sys.stderr.flush()
    os._exit(0)  # a CUDA context that a failed capture left behind must not hold up the end


if __name__ == "__main__":
    main()

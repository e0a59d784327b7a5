"""A fresh process: `python -m effbench.worker.fresh REQUEST DESCRIPTOR`.

It does what a user's program does up to its first answer, and imports nothing else before it; see
`fresh_program.py`. `REQUEST`: the file of a `FreshRequest`; `DESCRIPTOR`: the file for messages.
"""

from __future__ import annotations

import time


def main() -> None:
    begun_ns = time.monotonic_ns()
    # torch imports these, too
    import dataclasses  # noqa: F401
    import json
    import os
    import sys
    from pathlib import Path

    own_ns = time.monotonic_ns()
    from effbench.core.message import MessagePipe
    from effbench.worker.fresh_messages import INTERPRETER, FreshRequest

    path, descriptor = sys.argv[1:]
    pipe = MessagePipe(int(descriptor))
    pipe.send(part=INTERPRETER, ns=begun_ns)
    own_ns = time.monotonic_ns() - own_ns
    import torch  # noqa: F401 - its seconds are those of a user's program

    program_ns = time.monotonic_ns()
    from effbench.worker.fresh_program import run

    own_ns += time.monotonic_ns() - program_ns
    request = FreshRequest(**json.loads(Path(path).read_text()))
    is_done = run(request, pipe, own_ns / 1e9)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_done else 1)  # what a process does at its end may take seconds


if __name__ == "__main__":
    main()

"""A fresh process: `python -m effbench.worker.fresh REQUEST DESCRIPTOR`.

It does what a user's program does up to its first answer, and imports nothing else before it; see
`fresh_program.py`. `REQUEST`: the file of a `FreshRequest`; `DESCRIPTOR`: the pipe for messages.
"""

from __future__ import annotations

import time


def main() -> None:
    begun_ns = time.monotonic_ns()
    import json
    import os
    import sys
    from pathlib import Path

    from effbench.core.message import MessagePipe
    from effbench.worker.fresh_messages import INTERPRETER, FreshRequest

    path, descriptor = sys.argv[1:]
    pipe = MessagePipe(int(descriptor))
    pipe.send(part=INTERPRETER, ns=begun_ns)
    messages_s = (time.monotonic_ns() - begun_ns) / 1e9
    import torch  # noqa: F401 - its seconds are those of a user's program

    began_s = time.perf_counter()
    from effbench.worker.fresh_program import run

    effbench_s = messages_s + time.perf_counter() - began_s
    request = FreshRequest(**json.loads(Path(path).read_text()))
    is_done = run(request, pipe, effbench_s)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_done else 1)  # what a process does at its end may take seconds


if __name__ == "__main__":
    main()

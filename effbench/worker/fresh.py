"""A fresh process: `python -m effbench.worker.fresh FOLDER`.

It does what a user's program does up to its first answer, and imports nothing else before it; see
`fresh_program.py`. `FOLDER`: that of a `FreshFolder`.
"""

from __future__ import annotations

import time


def main() -> None:
    begun_ns = time.monotonic_ns()
    import os
    import sys
    from pathlib import Path

    from effbench.core.message import MessagePipe
    from effbench.worker.fresh_messages import INTERPRETER, FreshFolder

    folder = FreshFolder(Path(sys.argv[1]))
    pipe = MessagePipe(os.open(folder.messages, os.O_WRONLY))
    pipe.send(part=INTERPRETER, ns=begun_ns)
    from effbench.worker.fresh_program import run

    is_done = run(folder, pipe)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if is_done else 1)  # what a process does at its end may take seconds


if __name__ == "__main__":
    main()

"""The time for which processes use cores."""

import os
import signal
import subprocess
import time

from effbench.core import processes


def seconds_of_descendants():
    return processes.cpu_s() - time.process_time()


def test_descendants_use_cores_for_their_ancestor():
    before_s = seconds_of_descendants()
    deadline = time.monotonic() + 30
    with subprocess.Popen(["sh", "-c", "sh -c 'while :; do :; done'; :"]) as parent:
        while seconds_of_descendants() - before_s < 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for pid in processes.descendants(parent.pid):
            os.kill(pid, signal.SIGKILL)
    assert seconds_of_descendants() - before_s > 0.2, "also once they have ended"

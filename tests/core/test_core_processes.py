"""The time for which processes use cores, and their state."""

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


def test_a_process_is_stopped_and_waited_for_until_it_has_ended():
    with subprocess.Popen(["sleep", "60"]) as process:
        start = time.monotonic()
        processes.wait_until_gone(process.pid, 0.1)
        assert time.monotonic() - start >= 0.1
        assert not processes.is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        while not processes.is_stopped(process.pid):
            assert time.monotonic() - start < 30
        process.kill()
        processes.wait_until_gone(process.pid, 60)
        assert time.monotonic() - start < 30, "although nobody has waited for it"
    assert processes.state_of(process.pid) is None
    assert not processes.is_stopped(process.pid)

"""Sweeps that wait until they are ended."""

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def start_waiting(cli, processes, wait_gone):
    """Starts a sweep with `mischief.Waits`, and returns it once a trial waits, with the `pids` of
    that trial, its server and its children; in the end all of them must be gone."""
    shutil.copy(Path(__file__).parent / "misbehaving.py", cli.folder / "mischief.py")
    os.mkfifo(cli.folder / "begun")
    pids = []

    def start(*words, **options):
        process = cli.start("-m", *words, **options)
        processes.append(process)
        with (cli.folder / "begun").open() as pipe:  # opens when the trial opens its end
            pids.extend(int(pid) for pid in pipe.read().split())
        process.pids = pids
        return process

    yield start
    assert len(pids) == 4
    for pid in pids:
        wait_gone(pid)

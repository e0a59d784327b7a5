import multiprocessing

import pytest


@pytest.fixture
def other_processes():
    """Starts a process that calls a function with these arguments, and ends it with the test."""
    started = []

    def start(function, *args):
        process = multiprocessing.get_context("fork").Process(
            target=function, args=args, daemon=True
        )
        process.start()
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()

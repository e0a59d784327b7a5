"""Several processes on one database."""

import subprocess
import sys
import time

from effbench.store import Store

WRITER = """
import sys
from effbench.cell import Cell, Environment, Status, Trial
from effbench.store import Store

url, sweep, here, modes, rounds = sys.argv[1:]
with Store.open(url, mode="write") as store:
    cells = [cell for cell in store.planned(sweep) if cell.mode_name in modes.split(",")]
    print("ready", flush=True)
    for number in range(int(rounds)):
        for cell in cells:
            latency = 4.0 if cell.mode_name == "eager" else 1.0
            trial = Trial(cell.key, number, Status.OK, latency_ms=latency, samples={"latency_ms": [latency] * 500})
            store.record(sweep, here, trial)
"""

MAKER = "import sys; from effbench.store import Store; Store.open(sys.argv[1], mode='write').close()"


def start(program, *arguments):
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
    """What it printed; it must have ended well."""
    said, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    return said


def test_two_processes_write_to_one_database(path, store, cell, environment, begin):
    cells = [cell(mode, bs=bs) for bs in range(1, 6) for mode in ("eager", "default", "graph")]
    sweep, here = begin(store, cells), store.add_environment(environment(), {})
    writers = [start(WRITER, path, sweep, here, modes, 8) for modes in ("eager", "default,graph")]
    with Store.open(path) as reader:
        while any(writer.poll() is None for writer in writers):
            for row in reader.results(sweep):
                assert row["speedup"] in (None, 1.0) or abs(row["speedup"] - 4.0) < 1e-9
            time.sleep(0.01)
    assert all(end(writer).startswith("ready") for writer in writers)
    assert store.find_sweep(sweep).trials == 120
    assert {row["trials"] for row in store.results()} == {8}
    assert {row["mode"]: round(row["speedup"], 9) for row in store.results()} == {"eager": 1, "default": 4, "graph": 4}
    assert Store.check(path) == []


def test_many_processes_may_make_the_same_database(path):
    for maker in [start(MAKER, path) for _ in range(4)]:
        end(maker)
    assert Store.check(path) == []

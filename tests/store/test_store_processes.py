"""Several processes on one database."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter

import pytest
import sqlalchemy as sa
from made_sweeps import assert_ended_well, writer

from effbench.core.errors import ResumeError
from effbench.store import Store, sweeps
from effbench.store.schema import CELL
from effbench.store.values import cell_row


def rounded_speedups(store, sweep):
    speedups = [result.speedup for result in store.results(sweep)]
    return {speedup and round(speedup, 9) for speedup in speedups}


def test_two_processes_write_to_one_database(path, store, cell, here, begin):
    cells = [cell(mode, bs=bs) for bs in (1, 2, 3) for mode in ("eager", "default", "graph")]
    sweep = begin(store, cells)
    writers = [
        writer(
            path,
            sweep,
            here,
            range(2),
            modes,
        )
        for modes in ("eager", "default,graph")
    ]
    with Store.open(path) as reader:
        while None in [process.poll() for process in writers]:
            assert rounded_speedups(reader, sweep) <= {None, 1, 4}
            time.sleep(0.05)
    for process in writers:
        assert_ended_well(process)
    results = store.results()
    assert [result.trials for result in results] == [2] * len(cells)
    speedups = {result.mode: round(result.speedup, 9) for result in results}
    assert speedups == {"eager": 1, "default": 4, "graph": 4}


def make(path):
    Store.open(path, mode="write").close()


def test_many_processes_may_make_the_same_database(absent):
    context = multiprocessing.get_context("fork")
    makers = [context.Process(target=make, args=(absent,)) for _ in range(4)]
    for process in makers:
        process.start()
    for process in makers:
        process.join(60)
    assert [process.exitcode for process in makers] == [0] * 4


def resume_and_wait(path, sweep, pipe):
    with Store.open(path, mode="write") as store:
        store.resume_sweep(sweep)
    pipe.send("resumed")
    pipe.recv()


def test_of_two_processes_that_resume_a_sweep_one_does(path, store, cell, begin):
    """Both have read that it is interrupted."""
    sweep = begin(store, [cell()])
    store.finish_sweep(sweep, "interrupted")
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    other = context.Process(target=resume_and_wait, args=(path, sweep, there))
    other.start()
    assert here.recv() == "resumed"
    with pytest.raises(ResumeError, match=f"{sweep} is still running in process {other.pid};"):
        store.resume_sweep(sweep, rounds=9)
    here.send("end")
    other.join(60)
    assert store.find_sweep(sweep).state == "interrupted", "its process has ended"
    assert store.find_sweep(sweep).rounds == 3
    store.resume_sweep(sweep, rounds=9)
    assert store.find_sweep(sweep).rounds == 9


def test_two_transactions_that_add_the_same_cells_wait_for_each_other(path, store, cell, begin):
    cells = sorted((cell(bs=bs) for bs in (1, 2, 3)), key=attrgetter("key"))
    sweep = begin(store, [])

    def plan(reversed_cells):
        with Store.open(path, mode="write") as other, other.writing() as connection:
            sweeps.extend_sweep(connection, sweep, reversed_cells)

    with ThreadPoolExecutor() as pool:
        with store.writing() as connection:
            connection.execute(sa.insert(CELL).values(cell_row(cells[0])))
            planned = pool.submit(plan, cells[::-1])
            time.sleep(0.5)
            for last in cells[1:]:
                connection.execute(sa.insert(CELL).values(cell_row(last)))
        planned.result()
    assert store.planned(sweep) == cells[::-1]

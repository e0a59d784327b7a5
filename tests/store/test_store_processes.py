"""Several processes on one database."""

import multiprocessing
import time

from made_sweeps import assert_ended_well, writer

from effbench.store import Store


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

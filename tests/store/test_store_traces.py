"""Traces of trials: stored with them, and read for the trials that count."""

import random

import pytest
from made_sweeps import sql

from effbench.core.cell import Status, Trial
from effbench.core.trace import BYTES_LIMIT, Kernel, Trace

BUSY = "host busy for 83 % of the timing"


def a_trace(latency_ms=1.5, names=("gemm", "gelu")):
    kernels = [Kernel(name, "grid [1]", "aten::addmm", 0.2, 0.2, 0.1) for name in names]
    return Trace("cuda", 12, latency_ms, 0.1, 0.2, 40, tuple(kernels), {"guards": 0.02})


@pytest.fixture
def sweep(store, cell, begin):
    """A sweep of two cells."""
    return begin(store, [cell(), cell("default")])


@pytest.fixture
def add(store, cell, here, sweep):
    """Record a trial of a cell; return its id."""

    def add(number, trace, *, mode="eager", **values):
        data = None if trace is None else trace.to_json()
        trial = Trial(cell(mode).key, number, Status.OK, latency_ms=1.0, trace=data, **values)
        return store.add_trial(sweep, here, trial)

    return add


def latencies(traced):
    return [of_trial.trace and of_trial.trace.latency_ms for of_trial in traced]


def test_the_trials_that_count_have_their_traces(store, cell, here, sweep, add):
    """Last attempts, without marked ones, in the order of the rounds."""
    for number in (2, 0, 1):
        add(number, a_trace(number + 1.5), attempt=1)
    add(0, a_trace(9.0))
    add(3, a_trace(9.0), disturbance=BUSY)
    add(4, None)
    traced = store.traces(sweep, cell().key, here)
    assert latencies(traced) == [1.5, 2.5, 3.5, None]
    assert traced[0].trace == a_trace()
    assert [of_trial.trial.round for of_trial in traced] == [0, 1, 2, 4]
    assert {of_trial.trial.environment_id for of_trial in traced} == {here}
    assert store.traces(sweep, cell("default").key, here) == []


def test_the_traces_of_a_sweep_come_by_cell(store, cell, here, sweep, add, begin):
    add(0, a_trace(1.5))
    add(0, a_trace(2.5), mode="default")
    add(1, None, mode="default")
    found = {traced[0].trial.cell_key: latencies(traced) for traced in store.sweep_traces(sweep)}
    assert found == {cell().key: [1.5], cell("default").key: [2.5, None]}
    other = begin(store, [cell()])
    store.add_trial(other, here, Trial(cell().key, 0, Status.OK, latency_ms=1.0))
    assert list(store.sweep_traces(other)) == [], "not traced"


def test_a_trace_that_is_too_large_is_omitted(store, cell, here, sweep, add):
    noise = random.Random(0)
    names = [f"{noise.getrandbits(1200):x}" for _ in range(9_000)]
    add(0, a_trace(names=names))
    add(1, a_trace(names=names[:1000]))
    (large, small) = store.traces(sweep, cell().key, here)
    assert large.trace is None
    assert f"more than {BYTES_LIMIT:,}" in large.trial.extra["omitted_trace"]
    assert len(small.trace.kernels) == 1000
    assert small.trial.extra == {}


def test_a_trace_that_is_none_is_omitted(store, cell, here, sweep):
    trial = Trial(cell().key, 0, Status.OK, extra={"a": 1}, trace={"device": "cuda"})
    store.add_trial(sweep, here, trial)
    (traced,) = store.traces(sweep, cell().key, here)
    assert traced.trace is None
    assert traced.trial.extra == {"a": 1, "omitted_trace": "no trace: KeyError('ms')"}
    assert trial.extra == {"a": 1}


def test_a_damaged_trace_is_omitted(store, path, cell, here, sweep, add):
    add(0, a_trace(1.5))
    add(1, a_trace(2.5))
    empty = "'\\x00'" if "://" in str(path) else "x'00'"
    sql(path, f"UPDATE trace SET data = {empty} WHERE trial_id = 1", rows=1)
    traced = store.traces(sweep, cell().key, here)
    assert latencies(traced) == [None, 2.5]
    assert traced[0].trial.extra["damaged_trace"].startswith("no trace")


def test_recording_a_trial_twice_changes_no_trace(store, cell, here, sweep, add):
    assert add(0, a_trace(1.5), pid=7) == add(0, a_trace(2.5), pid=7)
    assert latencies(store.traces(sweep, cell().key, here)) == [1.5]

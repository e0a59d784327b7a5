"""Recording trials: what is stored, and what the results then say."""

import dataclasses
import datetime as dt
import math
import platform
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from whole_sweeps import set_state

import effbench
from effbench.core.cell import Status, StoredTrial, Trial
from effbench.core.errors import StoreError
from effbench.core.metrics import TRIAL_METRICS
from effbench.store import RESULT_COLUMNS
from effbench.store.trials import RECENT_TRIALS, HostSpeeds
from effbench.store.values import SAMPLE_LIMIT, decode_samples, encode_samples

OK = Status.OK


@pytest.fixture
def here(store, environment):
    return store.add_environment(environment(), {})


@pytest.fixture
def swept(store, cell, begin, here):
    """Records a sweep of trials with these values on this host or another, and returns its id."""

    def sweep(*trials, hostname=None):
        sweep_id = begin(store, [cell()], host={"hostname": hostname or platform.node()})
        for number, values in enumerate(trials):
            store.add_trial(sweep_id, here, Trial(cell().key, number, OK, **values))
        return sweep_id

    return sweep


def on_gpu(host_ms, **values):
    return {"gpu_uuid": "GPU-1", "host_ms": host_ms, **values}


def on_cpu(host_high_ms, **values):
    return {"host_ms": 0.02, "host_high_ms": host_high_ms, **values}


def test_recent_trials_of_this_machine_tell_the_speed_of_its_host(path, store, here, swept):
    """Oldest first: the quietest moments of trials on a GPU, the slower ones of undisturbed trials
    on the CPU."""
    swept(on_gpu(0.01), on_cpu(0.02), hostname="another machine")
    set_state(path, swept(on_gpu(0.01), on_cpu(0.02)), imported_at=dt.datetime.now(dt.UTC))
    assert store.host_speeds(here) == HostSpeeds()
    swept(on_gpu(0.05, host_high_ms=0.07), on_gpu(None), on_gpu(0.04))
    swept(on_cpu(0.05), on_cpu(None), on_cpu(0.09, disturbance="host busy"), on_cpu(0.04))
    swept(on_gpu(0.06))
    assert store.host_speeds(here) == HostSpeeds(quiet=[0.05, 0.04, 0.06], high=[0.05, 0.04])
    assert store.host_speeds("another environment") == HostSpeeds()


TENTHS = [0.1 * number for number in range(1, 10)]


@pytest.mark.parametrize(
    ("speeds", "low", "high"),
    [
        ([], None, None),
        ([0.5], 0.5, 0.5),
        ([9.0, *TENTHS], 0.28, 0.74),
        ([0.04, 0.06], 0.044, 0.056),
        ([9.0] * 20 + [1.0] * RECENT_TRIALS, 1.0, 1.0),
        ([1.0] * 6 + [3.0] * 4, 1.0, 1.0),
    ],
)
def test_the_usual_speeds_are_quantiles_of_recent_trials(speeds, low, high):
    assert HostSpeeds(quiet=speeds).quiet_ms() == pytest.approx(low)
    assert HostSpeeds(high=speeds).high_ms() == pytest.approx(high)


def test_every_field_of_a_trial_comes_back(store, cell, begin, here):
    sweep = begin(store, [cell()])
    kinds = {bool: True, int: 2**40, float: 2.5, str: "text"}
    values = {metric.name: kinds[metric.kind] for metric in TRIAL_METRICS}
    values |= {"reason": "r", "phase": "timing", "extra": {"deep": [1, {"a": None}]}}
    trial = Trial(
        cell().key,
        2,
        OK,
        started_at="2026-11-21T14:30:52.5+02:00",
        **values,
    )
    trial_id = store.add_trial(sweep, here, trial)
    stored = vars(trial) | {"started_at": "2026-11-21T12:30:52.500000+00:00"}
    assert store.trials(sweep) == [StoredTrial(**stored, id=trial_id, environment_id=here)]


def test_values_that_are_no_numbers_become_null(store, cell, begin, here):
    sweep = begin(store, [cell()])
    trial = Trial(
        cell().key,
        0,
        OK,
        latency_ms=math.nan,
        rel_error=math.inf,
        peak_host_bytes=2**70,
        latency_min_ms=np.float32(1.5),
        graph_breaks=np.int64(3),
        started_at="yesterday",
        samples={"latency_ms": [1.0, math.nan, math.inf, None, 1e300]},
        extra={
            "a": math.nan,
            "b": [-math.inf],
            3: {1},
            "c": object,
        },
    )
    trial_id = store.add_trial(sweep, here, trial)
    (row,) = store.trials(sweep)
    unknown = (row.latency_ms, row.rel_error, row.peak_host_bytes, row.started_at)
    assert unknown == (None,) * 4
    assert row.latency_min_ms == 1.5
    assert row.graph_breaks == 3
    assert row.extra == {"a": None, "b": [None], "3": [1], "c": "<class 'object'>"}
    found = store.samples(trial_id)["latency_ms"]
    np.testing.assert_array_equal(found, np.float32([1.0, np.nan, np.inf, np.nan, np.inf]))


def test_samples_come_back_in_order(store, cell, begin, here):
    sweep = begin(store, [cell()])
    raw = np.random.default_rng(3).random(5000).astype(np.float32)
    taken = {"latency_ms": raw.tolist(), "warmup_ms": [], "x": [1.0] * 6000}
    trial_id = store.add_trial(sweep, here, Trial(cell().key, 0, OK, samples=taken))
    found = store.samples(trial_id)
    assert {timer: values.size for timer, values in found.items()} == {
        "latency_ms": 5000,
        "warmup_ms": 0,
        "x": SAMPLE_LIMIT,
    }
    np.testing.assert_array_equal(found["latency_ms"], raw)
    assert store.samples(999) == {}
    (sampled,) = store.trials_with_samples(sweep, [here])
    assert sampled.timers["x"].taken == 6000, "the true count is kept"


@pytest.mark.parametrize("number", [5001, 123_456])
def test_more_samples_than_the_limit_are_thinned_evenly(number):
    stored, data = encode_samples(range(number))
    found = decode_samples(data, stored)
    assert stored == SAMPLE_LIMIT
    assert found[0] == 0
    assert found[-1] == number - 1
    steps = np.diff(found)
    assert steps.min() >= 1
    assert steps.max() - steps.min() <= 1


def test_the_last_attempt_of_a_round_is_the_history(store, cell, begin, here):
    sweep = begin(store, [cell()])
    store.add_trial(
        sweep,
        here,
        Trial(
            cell().key,
            0,
            OK,
            attempt=1,
            latency_ms=1.0,
        ),
    )
    store.add_trial(sweep, here, Trial(cell().key, 0, Status.CRASHED, attempt=0))
    assert [trial.attempt for trial in store.history(sweep, here)[cell().key]] == [1]
    assert store.history(sweep, "elsewhere") == {}


@pytest.mark.parametrize(
    ("mode", "environment_id", "reason"),
    [
        ("eager", None, "already recorded"),
        ("default", None, "(?i)foreign key"),
        ("eager", "nowhere", "(?i)foreign key"),
    ],
    ids=["another outcome", "another cell", "another environment"],
)
def test_strangers_are_refused(store, cell, begin, here, mode, environment_id, reason):
    sweep = begin(store, [cell()])
    store.add_trial(sweep, here, Trial(cell().key, 0, OK, latency_ms=1.0))
    before = store.results(), store.trials(sweep)
    with pytest.raises(StoreError, match=reason):
        store.add_trial(sweep, environment_id or here, Trial(cell(mode).key, 0, Status.ERROR))
    assert (store.results(), store.trials(sweep)) == before


def backwards(record, trials):
    return [record(trial) for trial in reversed(trials)]


def in_threads(record, trials):
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(record, trials))


@pytest.fixture
def six_cells(cell):
    return [cell(mode, bs=bs) for bs in (1, 2) for mode in ("eager", "default", "graph")]


@pytest.fixture
def recorded(store, begin, here, six_cells):
    """Record two trials of each cell in an order; return their results without sweep and time."""

    def record_all(recording):
        trials = []
        for number, one in enumerate(six_cells, start=1):
            trials.append(Trial(one.key, 0, OK, latency_ms=number))
            trials.append(Trial(one.key, 1, OK, latency_ms=1.1 * number))
        sweep = begin(store, six_cells)
        assert len(list(recording(partial(store.add_trial, sweep, here), trials))) == len(trials)
        results = store.results(sweep)
        store.rebuild_results(sweep)
        assert store.results(sweep) == results
        return [dataclasses.replace(row, sweep_id="", started_at=None) for row in results]

    return record_all


@pytest.mark.parametrize("recording", [backwards, in_threads])
def test_the_order_of_recording_does_not_matter(recorded, recording, store, path):
    in_order = recorded(map)
    assert {row.trials for row in in_order} == {2}
    assert recorded(recording) == in_order
    assert type(store).check(path) == []


def speedups(store, sweep):
    return [result.speedup for result in store.results(sweep)]


def test_sweeps_and_environments_do_not_mix(store, cell, begin, environment, here):
    eager, default = cell("eager"), cell("default")
    there = store.add_environment(environment(python="3.12.1"), {})
    first, second = begin(store, [eager, default]), begin(store, [eager, default])
    store.add_trial(first, here, Trial(eager.key, 0, OK, latency_ms=3.0))
    store.add_trial(first, there, Trial(default.key, 0, OK, latency_ms=1.0))
    store.add_trial(second, here, Trial(default.key, 0, OK, latency_ms=1.0))
    assert speedups(store, first) == [1.0, None]
    assert speedups(store, second) == [None]
    assert {result.python for result in store.results(first)} == {"3.12.4", "3.12.1"}


def test_of_two_variants_of_the_baseline_mode_one_is_the_baseline(store, cell, begin, here):
    cells = [cell("eager"), cell("eager", channels_last=True), cell("default")]
    sweep = begin(store, cells)
    for one, latency in zip(cells, (4.0, 2.0, 1.0), strict=True):
        store.add_trial(sweep, here, Trial(one.key, 0, OK, latency_ms=latency))
    assert speedups(store, sweep) == pytest.approx([1.0, 2.0, 4.0])


DTYPES = {
    "bs": "Int64",
    "trials": "Int64",
    "kernels": "Int64",
    "peak_reserved_bytes": "Int64",
    "latency_ms": "float64",
    "speedup": "float64",
    "status": "string",
    "reason": "string",
    "marked": "boolean",
    "started_at": "datetime64[ns, UTC]",
    "params": "object",
}


@pytest.mark.parametrize("figures", [{}, {"latency_ms": 2.0, "peak_reserved_bytes": 2**53 + 1}])
def test_the_dtypes_of_a_frame_do_not_depend_on_its_rows(figures, path, store, cell, begin, here):
    sweep = begin(store, [cell()])
    if figures:
        store.add_trial(sweep, here, Trial(cell().key, 0, OK, **figures))
    frame = effbench.results(str(path), sweep)
    assert tuple(frame.columns) == RESULT_COLUMNS
    assert {name: str(frame.dtypes[name]) for name in DTYPES} == DTYPES
    for row in frame.to_dict("records"):
        assert row["params"] == cell().params()
        assert row["peak_reserved_bytes"] == 2**53 + 1
        assert row["started_at"] == store.find_sweep(sweep).started_at

"""Recording trials: what is stored, and what the results then say."""

import dataclasses
import datetime as dt
import math
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import made_sweeps
import numpy as np
import pytest
from made_sweeps import DEFAULT, EAGER, a_cell
from sqlalchemy import select
from whole_sweeps import set_state

import effbench
from effbench.core.cell import Status, StoredTrial, Trial
from effbench.core.errors import StoreError
from effbench.core.metrics import TRIAL_METRICS
from effbench.store import RESULT_COLUMNS
from effbench.store.schema import SWEEP
from effbench.store.trials import RECENT_TRIALS, HostSpeeds
from effbench.store.values import SAMPLE_LIMIT, as_dicts, decode_samples, encode_samples

OK = Status.OK


@pytest.fixture
def sweep(store, cell, begin):
    """A sweep of one cell."""
    return begin(store, [cell()])


@pytest.fixture
def add(store, cell, here, sweep):
    """Record a trial of the cell; return its id."""

    def add(status=OK, **values):
        return store.add_trial(
            sweep,
            here,
            Trial(
                cell().key,
                0,
                status,
                **values,
            ),
        )

    return add


def test_recent_trials_of_this_machine_tell_the_speed_of_its_host(path, made, opened):
    """Oldest first: the quietest moments of trials on a GPU, the slower ones of undisturbed trials
    on the CPU."""
    gpu = {"gpu_uuid": "GPU-1", "host_ms": [0.05, None, 0.04, 0.06], "host_high_ms": 0.07}
    cpu = {
        "host_ms": 0.02,
        "host_high_ms": [0.05, None, 0.09, 0.04],
        "disturbance": [None, None, "host busy", None],
    }
    machine = made_sweeps.environment().id
    here = {"hostname": platform.node()}
    made.sweep({EAGER: gpu}, rounds=4, host={"hostname": "another machine"})
    imported = made.sweep({EAGER: cpu}, rounds=4, host=here)
    set_state(path, imported, imported_at=dt.datetime.now(dt.UTC))
    assert opened.host_speeds(machine) == HostSpeeds()
    for figures in (gpu, cpu):
        made.sweep({EAGER: figures}, rounds=4, host=here)
    assert opened.host_speeds(machine) == HostSpeeds(quiet=[0.05, 0.04, 0.06], high=[0.05, 0.04])
    assert opened.host_speeds("another environment") == HostSpeeds()


TENTHS = [0.1 * number for number in range(1, 10)]


@pytest.mark.parametrize(
    ("speeds", "low", "high"),
    [
        ([], None, None),
        ([0.5], 0.5, 0.5),
        ([9.0, *TENTHS], 0.28, 0.74),
        ([9.0] * 20 + [1.0] * RECENT_TRIALS, 1.0, 1.0),
        ([1.0] * 6 + [3.0] * 4, 1.0, 1.0),
    ],
)
def test_the_usual_speeds_are_quantiles_of_recent_trials(speeds, low, high):
    assert HostSpeeds(quiet=speeds).quiet_ms() == pytest.approx(low)
    assert HostSpeeds(high=speeds).high_ms() == pytest.approx(high)


def test_every_field_of_a_trial_comes_back(store, cell, sweep, here):
    kinds = {
        bool: True,
        int: 2**40,
        float: 2.5,
        str: "text",
    }
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


def test_values_that_are_no_numbers_become_null(store, sweep, add):
    trial_id = add(
        latency_ms=math.nan,
        rel_error=math.inf,
        peak_host_bytes=2**70,
        latency_min_ms=np.float32(1.5),
        started_at="yesterday",
        samples={"latency_ms": [1.0, math.nan, math.inf, None, 1e300]},
        extra={
            "a": math.nan,
            "b": [-math.inf],
            3: {1},
            "c": object,
        },
    )
    (row,) = store.trials(sweep)
    assert {row.latency_ms, row.rel_error, row.peak_host_bytes, row.started_at} == {None}
    assert row.latency_min_ms == 1.5
    assert row.extra == {
        "a": None,
        "b": [None],
        "3": [1],
        "c": "<class 'object'>",
    }
    found = store.samples(trial_id)["latency_ms"]
    np.testing.assert_array_equal(found, np.float32([1.0, np.nan, np.inf, np.nan, np.inf]))


def test_samples_come_back_in_order(store, sweep, add, here):
    raw = np.random.default_rng(3).random(5000).astype(np.float32)
    trial_id = add(samples={"latency_ms": raw.tolist(), "warmup_ms": [], "x": [1.0] * 6000})
    found = store.samples(trial_id)
    np.testing.assert_array_equal(found["latency_ms"], raw)
    assert found["warmup_ms"].size == 0
    assert found["x"].size == SAMPLE_LIMIT
    (sampled,) = store.trials_with_samples(sweep, [here])
    assert sampled.timers["x"].taken == 6000, "the true count is kept"


def test_damaged_samples_of_a_timer_are_omitted(path, store, sweep, add, here):
    good = {"latency_ms": [1.0, 2.0], "period_ms": [3.0]}
    add(samples=good)
    damaged = add(attempt=1, samples=good)
    bad = f"trial_id = {damaged} AND timer = 'latency_ms'"
    made_sweeps.sql(path, f"UPDATE sample SET stored = 1 WHERE {bad}")
    whole, part = store.trials_with_samples(sweep, [here])
    assert {timer: samples.stored.tolist() for timer, samples in whole.timers.items()} == good
    assert whole.trial.extra == {}
    assert list(part.timers) == ["period_ms"]
    assert f"timer latency_ms of trial {damaged}" in part.trial.extra["damaged_samples"]
    assert list(store.trials_with_samples(sweep, ["elsewhere"])) == []


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


def test_the_last_attempt_of_a_round_is_the_history(store, cell, sweep, add, here):
    add(attempt=1, latency_ms=1.0)
    add(Status.CRASHED, attempt=0)
    (trial,) = store.history(sweep, here)[cell().key]
    assert trial.attempt == 1
    assert store.history(sweep, "elsewhere") == {}


@pytest.mark.parametrize(
    ("mode", "reason"), [("eager", "already recorded"), ("default", "(?i)foreign key")]
)
def test_strangers_are_refused(store, cell, sweep, add, here, mode, reason):
    add(latency_ms=1.0)
    before = store.results(), store.trials(sweep)
    with pytest.raises(StoreError, match=reason):
        store.add_trial(sweep, here, Trial(cell(mode).key, 0, Status.ERROR))
    assert (store.results(), store.trials(sweep)) == before


def backwards(record, trials):
    return [record(trial) for trial in reversed(trials)]


def in_threads(record, trials):
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(record, trials))


@pytest.mark.parametrize("recording", [backwards, in_threads])
def test_the_order_of_recording_does_not_matter(recording, store, cell, here, begin):
    cells = [cell(mode, bs=bs) for bs in (1, 2) for mode in ("eager", "default", "graph")]
    trials = []
    for level, planned in enumerate(cells, start=1):
        trials += [Trial(planned.key, turn, OK, latency_ms=level + turn) for turn in (0, 1)]
    results = []
    for record_all in (map, recording):
        sweep_id = begin(store, cells)
        list(record_all(partial(store.add_trial, sweep_id, here), trials))
        rows = store.results(sweep_id)
        store.rebuild_results(sweep_id)
        assert store.results(sweep_id) == rows
        results.append([dataclasses.replace(row, sweep_id="", started_at=None) for row in rows])
    assert results[0] == results[1]
    assert {row.trials for row in results[0]} == {2}


def speedups(store, sweep):
    return [result.speedup for result in store.results(sweep)]


def test_sweeps_and_environments_do_not_mix(store, cell, begin, environment, here):
    eager, default = cell("eager"), cell("default")
    there = store.add_environment(environment(python="3.12.1"), {})
    first, second = begin(store, [eager, default]), begin(store, [eager, default])
    store.add_trial(
        first,
        here,
        Trial(
            eager.key,
            0,
            OK,
            latency_ms=3.0,
        ),
    )
    store.add_trial(
        first,
        there,
        Trial(
            default.key,
            0,
            OK,
            latency_ms=1.0,
        ),
    )
    store.add_trial(
        second,
        here,
        Trial(
            default.key,
            0,
            OK,
            latency_ms=1.0,
        ),
    )
    assert speedups(store, first) == [1.0, None]
    assert speedups(store, second) == [None]


def test_of_two_variants_of_the_baseline_mode_one_is_the_baseline(made, opened):
    variant = a_cell(settings={"channels_last": True})
    latencies = {EAGER: 4.0, variant: 2.0, DEFAULT: 1.0}
    sweep = made.sweep({cell: {"latency_ms": ms} for cell, ms in latencies.items()})
    assert speedups(opened, sweep) == pytest.approx([1.0, 2.0, 4.0])


DTYPES = {
    "bs": "Int64",
    "peak_reserved_bytes": "Int64",
    "latency_ms": "float64",
    "status": "string",
    "marked": "boolean",
    "started_at": "datetime64[ns, UTC]",
    "params": "object",
}


@pytest.mark.parametrize("figures", [{}, {"latency_ms": 2.0, "peak_reserved_bytes": 2**53 + 1}])
def test_the_dtypes_of_a_frame_do_not_depend_on_its_rows(figures, path, store, cell, sweep, add):
    if figures:
        add(**figures)
    frame = effbench.results(str(path), sweep)
    assert tuple(frame.columns) == RESULT_COLUMNS
    assert {name: str(frame.dtypes[name]) for name in DTYPES} == DTYPES
    for row in frame.to_dict("records"):
        assert row["params"] == cell().params()
        assert row["peak_reserved_bytes"] == 2**53 + 1


def test_the_names_in_rows_are_plain_and_interned(store, sweep):
    """A call with 130 of them as keywords takes three times as long otherwise."""
    with store.reading() as connection:
        (row,) = as_dicts(connection, select(SWEEP))
        assert list(row) == list(SWEEP.columns.keys())
        assert row["id"] == sweep
        for name in row:
            assert sys.intern(name) is name

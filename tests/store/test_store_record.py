"""Recording trials: what is stored, and what the results then say."""

import dataclasses
import datetime as dt
import math
import platform
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import sqlalchemy as sa

import effbench
from effbench.cell import Status, Trial
from effbench.errors import StoreError
from effbench.store import RESULT_COLUMNS
from effbench.store.schema import SWEEP
from effbench.store.values import CODEC, SAMPLE_LIMIT, decode_samples, encode_samples

OK = Status.OK


@pytest.fixture
def here(store, environment):
    return store.add_environment(environment(), {})


def test_the_host_is_as_fast_as_what_ran_on_it(store, cell, begin, here):
    def swept(*speeds, **host):
        sweep = begin(store, [cell()], host={"hostname": platform.node(), **host})
        for number, host_ms in enumerate(speeds):
            store.record(sweep, here, Trial(cell().key, number, OK, host_ms=host_ms))
        return sweep

    swept(0.05, None, 0.04)
    swept(0.01, hostname="another machine")
    imported = swept(0.02)
    with store._writing() as connection:
        connection.execute(sa.update(SWEEP).where(SWEEP.c.id == imported).values(imported_at=dt.datetime.now(dt.UTC)))
    for hostname, host_ms in (("another machine", 0.02), (platform.node(), 0.03)):
        assert store.host_speeds(here, 50) == [0.05, 0.04]
        store.add_calibration(here, None, noise={"host_ms": host_ms, "hostname": hostname})
    swept(0.06)
    assert store.host_speeds(here, 50) == [0.05, 0.04, *[0.03] * 10, 0.06]
    assert store.host_speeds(here, 3) == [0.03, 0.03, 0.06], "newer trials replace a calibration"


def test_every_field_of_a_trial_comes_back(store, cell, begin, here):
    one = cell()
    sweep = begin(store, [one])
    values = {}
    for number, field in enumerate(dataclasses.fields(Trial), start=1):
        kind = str(field.type)
        values[field.name] = f"t{number}" if "str" in kind else number + 0.5 if "float" in kind else number
    values |= {"cell_key": one.key, "status": OK, "steady": True, "started_at": "2026-11-21T14:30:52.5+02:00"}
    values |= {"samples": {"latency_ms": [1.0, 2.0]}, "extra": {"deep": [1, {"a": None}]}}
    values["peak_host_bytes"] = 2**40
    trial_id = store.record(sweep, here, Trial(**values))
    (row,) = store.trials(sweep)
    assert row["started_at"] == dt.datetime(2026, 11, 21, 12, 30, 52, 500_000, tzinfo=dt.UTC)
    assert (row["id"], row["sweep_id"], row["environment_id"]) == (trial_id, sweep, here)
    for name in values.keys() - {"samples", "started_at"}:
        assert row[name] == values[name], name


def test_values_that_are_no_numbers_become_null(store, cell, begin, here):
    one = cell()
    sweep = begin(store, [one])
    trial = Trial(one.key, 0, OK, latency_ms=math.nan, rel_error=math.inf, peak_host_bytes=2**70,
                  latency_min_ms=np.float32(1.5), graph_breaks=np.int64(3), started_at="yesterday",
                  samples={"latency_ms": [1.0, math.nan, math.inf, None, 1e300]},
                  extra={"a": math.nan, "b": [-math.inf], 3: {1, }, "c": object})  # fmt: skip
    trial_id = store.record(sweep, here, trial)
    (row,) = store.trials(sweep)
    assert (row["latency_ms"], row["rel_error"], row["peak_host_bytes"], row["started_at"]) == (None,) * 4
    assert (row["latency_min_ms"], row["graph_breaks"]) == (1.5, 3)
    assert row["extra"] == {"a": None, "b": [None], "3": [1], "c": "<class 'object'>"}
    found = store.samples(trial_id)["latency_ms"]
    np.testing.assert_array_equal(found, np.array([1.0, np.nan, np.inf, np.nan, np.inf], dtype=np.float32))
    assert store.results(sweep)[0]["latency_ms"] is None


def test_samples_come_back_in_order(store, cell, begin, here):
    one = cell()
    sweep = begin(store, [one])
    raw = np.random.default_rng(3).random(5000)
    taken = {"latency_ms": raw.tolist(), "warmup_ms": [], "period_ms": [0.5], "x": [1.0] * 6000}
    trial_id = store.record(sweep, here, Trial(one.key, 0, OK, samples=taken))
    found = store.samples(trial_id)
    assert list(found) == ["latency_ms", "period_ms", "warmup_ms", "x"]
    assert found["latency_ms"].dtype == np.float32
    np.testing.assert_array_equal(found["latency_ms"], raw.astype(np.float32))
    assert (found["warmup_ms"].size, found["x"].size, store.samples(999)) == (0, SAMPLE_LIMIT, {})
    ((_, counted),) = store.trials_with_samples(sweep, [here])
    assert counted["x"][0] == 6000, "the true count is kept"


def test_more_samples_than_the_limit_are_thinned_evenly():
    for n in (5001, 9999, 123_456):
        stored, data = encode_samples(list(range(n)))
        found = decode_samples(CODEC, data, stored)
        assert stored == len(found) == SAMPLE_LIMIT
        assert (found[0], found[-1]) == (0, n - 1)
        steps = np.diff(found)
        assert steps.min() >= 1 and steps.max() - steps.min() <= 1


def test_duplicates_and_strangers_are_refused_and_the_last_attempt_counts(store, cell, begin, here):
    one, two, other = cell(), cell("graph"), cell("default")
    sweep = begin(store, [one, two])
    store.record(sweep, here, Trial(one.key, 0, OK, attempt=1, latency_ms=1.0))
    before = store.results(), store.trials(sweep)
    for where, trial, said in (
        (here, Trial(one.key, 0, Status.ERROR, attempt=1, samples={"latency_ms": [1.0]}), "already recorded"),
        (here, Trial(other.key, 0, OK), "not planned"),
        ("nowhere", Trial(one.key, 1, OK), "belongs to an unknown environment"),
    ):
        with pytest.raises(StoreError, match=said):
            store.record(sweep, where, trial)
    assert (store.results(), store.trials(sweep)) == before
    store.record(sweep, here, Trial(one.key, 0, Status.CRASHED, attempt=0))
    store.record(sweep, here, Trial(two.key, 2, Status.OOM))
    assert [trial.attempt for trial in store.history(sweep, here)[one.key]] == [1]
    assert store.history(sweep, "elsewhere") == {}


def test_the_order_of_recording_does_not_matter(store, cell, begin, here, path):
    cells = [cell(mode, bs=bs) for bs in (1, 2) for mode in ("eager", "default", "graph")]
    trials = [Trial(one.key, r, OK, latency_ms=(1 + r / 10) * (i + 1)) for i, one in enumerate(cells) for r in range(3)]

    def in_threads(record, trials):
        with ThreadPoolExecutor(len(cells)) as pool:
            return list(pool.map(record, trials))

    seen = []
    for recording in (map, lambda record, trials: map(record, trials[::-1]), in_threads):
        sweep = begin(store, cells)
        assert len(list(recording(partial(store.record, sweep, here), trials))) == len(trials)
        rows = store.results(sweep)
        seen.append([{k: v for k, v in row.items() if k not in ("sweep_id", "started_at")} for row in rows])
        store.rebuild_results(sweep)
        assert store.results(sweep) == rows
    assert {row["trials"] for row in seen[0]} == {3}
    assert seen[0] == seen[1] == seen[2]
    assert type(store).check(path) == []


def test_sweeps_environments_and_variants_do_not_mix(store, cell, begin, environment, here):
    eager, default, variant = cell("eager"), cell("default"), cell("eager", channels_last=True)
    there = store.add_environment(environment(python="3.12.1"), {})
    first, second = begin(store, [eager, default]), begin(store, [eager, default])
    store.record(first, here, Trial(eager.key, 0, OK, latency_ms=3.0))
    store.record(first, there, Trial(default.key, 0, OK, latency_ms=1.0))
    store.record(second, here, Trial(default.key, 0, OK, latency_ms=1.0))
    assert [row["speedup"] for row in store.results()] == [1.0, None, None]
    assert {row["python"] for row in store.results(first)} == {"3.12.4", "3.12.1"}
    # of two variants of the baseline mode one is the baseline
    sweep = begin(store, [eager, variant, default])
    for one, latency in ((variant, 2.0), (default, 1.0), (eager, 4.0)):
        store.record(sweep, here, Trial(one.key, 0, OK, latency_ms=latency))
    assert [row["speedup"] for row in store.results(sweep)] == [1.0, pytest.approx(2.0), pytest.approx(4.0)]


DTYPES = {
    "string": {"sweep_id", "sweep_name", "label", "model", "mode", "dtype", "phase", "device", "status", "reason",
               "bound", "disturbance", "gpu_name", "torch_version", "python", "environment_id", "cell_key"},
    "boolean": {"marked"},
    "Int64": {"bs", "trials", "kernels", "break_even_calls", "build_peak_allocated_bytes",
              "prepare_peak_allocated_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
              "peak_reserved_cold_bytes", "compilations", "graph_pool_bytes", "process_gpu_bytes", "graph_breaks",
              "recompiles", "cudagraph_skips", "unsteady_trials"},
    "datetime64[ns, UTC]": {"started_at"},
    "object": {"params"},
}  # fmt: skip


@pytest.mark.parametrize("held", ["nothing", "failures", "figures"])
def test_the_dtypes_of_a_frame_do_not_depend_on_its_rows(held, path, store, cell, begin, here):
    eager, default = cell(), cell("default")
    sweep = begin(store, [eager, default])
    figures = {"status": OK, "latency_ms": 2.0, "peak_reserved_bytes": 2**53 + 1, "kernels": 3}
    for one in (eager, default) if held != "nothing" else ():
        facts = figures if held == "figures" else {"status": Status.ERROR, "reason": "broke"}
        store.record(sweep, here, Trial(one.key, 0, **facts))
    frame = effbench.results(str(path), sweep)
    assert tuple(frame.columns) == RESULT_COLUMNS and len(frame) == (0 if held == "nothing" else 2)
    assert set().union(*DTYPES.values()) < set(frame.columns)
    for name, dtype in frame.dtypes.items():
        expected = next((kind for kind, names in DTYPES.items() if name in names), "float64")
        assert str(dtype) == expected, name
    if held == "figures":
        first = frame.iloc[0]
        assert (first["params"], first["started_at"]) == (eager.params(), store.find_sweep(sweep).started_at)
        assert (first["peak_reserved_bytes"], first["speedup"]) == (2**53 + 1, 1.0)
        assert frame["reason"].isna().all() and frame["graph_breaks"].isna().all()
    if held == "failures":
        assert frame["latency_ms"].isna().all() and set(frame["reason"]) == {"broke"}

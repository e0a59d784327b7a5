"""What the site shows of a cell: numbers equal those that are stored, and every file is found by
its key."""

import base64
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from browsing import content, report_of, site
from made_sweeps import a_cell, environment
from whole_sweeps import begun

from effbench.core.cell import Status, Trial
from effbench.core.metrics import METRICS
from effbench.render.site.cell_data import FACTS, MOST_POINTS, profile
from effbench.render.site.pages import cell as cell_page
from effbench.store import Store
from effbench.store.values import SAMPLE_LIMIT


class Small(NamedTuple):
    """A database, the key of a cell, and the entries of two cells on its page."""

    path: Path
    key: str
    eager: dict[str, Any]
    failed: dict[str, Any]


GPU, LATER = environment(), environment(torch_version="2.14.0")
TOP = [
    {"name": "gemm<bf16>", "count": 2.0, "ms": 0.3, "share": 0.6},
    {"name": "add", "count": 1.0, "ms": 0.2, "share": 0.4},
]


def draws(seed, count, middle=1.0):
    return (middle + np.abs(np.random.default_rng(seed).normal(0, 0.05, count))).tolist()


def trial(cell, round=0, attempt=0, **more):
    count = more.pop("count", 300)
    latency = draws(round * 10 + attempt, count)
    figures = {
        "latency_ms": float(np.median(latency)),
        "latency_samples": count,
        "period_ms": 0.9,
        "warmup_calls": 12,
        "steady": True,
        "compile_s": 9.0 / (1 + round),
        "compile_cache": "warm" if round else "cold",
        "sm_clock_mhz": 1980,
        "peak_reserved_bytes": 2**28,
        "started_at": f"2026-03-01T09:3{round}:00+00:00",
        "kernels": 3,
        "wall_s": 4.5,
        "samples": {
            "latency_ms": latency,
            "period_ms": draws(99, 40, 0.9),
            "warmup_ms": draws(98, 12, 1.2),
        },
        "extra": {
            "profile": {"calls": 12, "kernels_in_graphs": 3, "top": TOP},
            "preempted": round,
            "cache": {"hits": 1, "misses": 0},
        },
    }
    return Trial(
        cell.key, round, Status(more.pop("status", "ok")), attempt=attempt, **{**figures, **more}
    )


def failed(cell, round=0):
    said = {"phase": "prepare", "extra": {"traceback": "Trace\nboom"}}
    return Trial(cell.key, round, Status.ERROR, "in prepare: boom", **said)


def record(path, cells_trials, *environments, **facts):
    """Record a sweep of these cells (by default on GPU); returns its id."""
    with Store.open(path, mode="write") as store:
        sweep_id = begun(store, list(cells_trials), rounds=2, **facts)
        for place in environments or [GPU]:
            environment_id = store.add_environment(place, {})
            for one in (one for trials in cells_trials.values() for one in trials):
                store.add_trial(sweep_id, environment_id, one)
    return sweep_id


def written(path, out):
    """Write the site of a database's first device sweep; returns key -> entries, and the index."""
    site(out, report_of(path).device_sweeps[0])
    (folder,) = [one for one in out.iterdir() if (one / "cell.html").is_file()]
    found, about = {}, content(folder / "data" / "cell-index.js")
    for part in about["chunks"]:
        chunk = content(folder / part["file"])
        assert next(iter(chunk)) == part["first_key"]
        found |= chunk
    return found, about


# --- one cell ---


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two cells: eager with three rounds, one of them tried twice, and a failed one."""
    folder = tmp_path_factory.mktemp("cells")
    eager, graph = a_cell(), a_cell("cuda-graph")
    trials = [
        trial(eager, 0),
        trial(eager, 1, disturbance="clocks reduced by heat"),
        trial(eager, 1, 1, count=SAMPLE_LIMIT + 700),
        trial(eager, 2),
    ]
    record(folder / "r.db", {eager: trials, graph: [failed(graph), failed(graph, 1)]})
    entries, _ = written(folder / "r.db", folder / "site")
    assert set(entries) == {eager.key, graph.key}
    return Small(folder / "r.db", eager.key, entries[eager.key][0], entries[graph.key][0])


def test_results_are_those_of_the_view(small):
    with Store.open(small.path) as store:
        (result,) = [row for row in store.results() if row.cell_key == small.key]
    known = {}
    for name, metric in METRICS.items():
        if result.value(name) is not None:
            known[name] = [result.value(name), metric.format(result.value(name))]
    results = small.eager["results"]
    assert {name: [shown["value"], shown["text"]] for name, shown in results.items()} == known
    bounds = results["latency_ms"]["low"], results["latency_ms"]["high"]
    assert bounds == (result.latency_ci_low_ms, result.latency_ci_high_ms)
    assert small.eager["params"]["model.name"] == "mlp"


def trials_of(small):
    with Store.open(small.path) as store:
        (sweep,) = store.sweeps()
        rows = [row for row in store.trials(sweep.id) if row.cell_key == small.key]
        rows.sort(key=lambda row: (row.round, row.attempt))
        return rows, [store.samples(row.id)["latency_ms"] for row in rows]


def test_trials_are_those_of_the_table(small):
    rows, _ = trials_of(small)
    places = [{"round": row.round, "attempt": row.attempt} for row in rows]
    assert small.eager["trials"] == places
    assert places[2] == {"round": 1, "attempt": 1}
    facts = {}
    for fact in small.eager["facts"]:
        facts[fact["name"]] = fact["values"] if "values" in fact else [fact["every"]] * len(rows)
    for name in FACTS:
        values = [getattr(row, name) for row in rows]
        assert facts.get(name, [None] * len(rows)) == values
    units = {fact["name"]: fact.get("unit") for fact in small.eager["facts"]}
    assert units["peak_reserved_bytes"] == "bytes"
    assert units["kernels"] is None
    assert facts["preempted"] == [0, 1, 1, 2]
    assert facts["cache.hits"] == [1, 1, 1, 1]


def test_samples_are_those_that_are_stored(small):
    _, stored = trials_of(small)
    timers = {timer["name"]: timer for timer in small.eager["timers"]}
    assert list(timers) == ["latency_ms", "period_ms", "warmup_ms"]
    titles = [(timer["title"], timer["unit"]) for timer in timers.values()]
    assert titles == [("latency", "ms"), ("period", "ms"), ("warm-up calls", "ms")]
    shown = timers["latency_ms"]["trials"]
    assert [trial["taken"] for trial in shown] == [300, 300, SAMPLE_LIMIT + 700, 300]
    assert [trial["stored"] for trial in shown] == [300, 300, SAMPLE_LIMIT, 300]
    for trial, array in zip(shown, stored, strict=True):
        points = np.frombuffer(base64.b64decode(trial["points"]), "<f4")
        places = np.linspace(0, len(array) - 1, MOST_POINTS).astype(int)
        assert points.tolist() == array[places].tolist()


def test_an_error_is_shown_once_with_its_trials(small):
    (error,) = small.failed["errors"]
    assert error["reason"] == "in prepare: boom"
    assert error["traceback"] == "Trace\nboom"
    assert error["trials"] == [0, 1]
    assert small.eager["errors"] == [], "a marked trial is ok"


def test_kernels_are_those_of_an_undisturbed_trial_if_there_is_one():
    busy = Trial(
        "k",
        0,
        Status.OK,
        disturbance="heat",
        extra={"profile": {"top": []}},
    )
    quiet = Trial("k", 1, Status.OK, extra={"profile": {"top": TOP}})
    assert profile([busy, quiet])["top"] == TOP
    assert profile([busy])["top"] == []
    assert profile([]) is None


# --- many cells ---


def test_a_sweep_that_goes_on_adds_nothing_to_what_was_read(tmp_path):
    eager, graph = a_cell(), a_cell("cuda-graph")
    sweep_id = record(tmp_path / "r.db", {eager: [trial(eager, count=20)], graph: []})
    (own,) = report_of(tmp_path / "r.db").device_sweeps
    with Store.open(tmp_path / "r.db", mode="write") as store:
        store.add_trial(sweep_id, GPU.id, trial(graph, count=20))
    folder = site(tmp_path / "site", own) / own.slug
    assert list(content(folder / "data" / "cell-0.js")) == [eager.key]


def test_files_have_some_cells_each_with_keys_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_page, "CELLS_A_FILE", 2)
    cells = [a_cell(bs=bs) for bs in range(1, 6)]
    record(tmp_path / "r.db", {cell: [trial(cell, count=20)] for cell in cells})
    entries, index = written(tmp_path / "r.db", tmp_path / "site")
    assert list(entries) == sorted(cell.key for cell in cells)
    assert len(index["chunks"]) == 3

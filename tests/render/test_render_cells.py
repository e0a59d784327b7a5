"""What the site shows of a cell: numbers equal those that are stored, and every file is found by
its key."""

import base64
from itertools import chain

import numpy as np
from browsing import content, report_of, site
from made_sweeps import a_cell, environment
from whole_sweeps import begun

from effbench.core.cell import Status, Trial
from effbench.core.metrics import METRICS
from effbench.render.site.cell_data import MOST_POINTS, errors, facts, profile, timers
from effbench.render.site.pages import cell as cell_page
from effbench.store import Store
from effbench.store.trials import StoredSamples

GPU, LATER = environment(), environment(torch_version="2.14.0")
TOP = [{"name": "gemm<bf16>", "count": 2.0, "ms": 0.3, "share": 0.6}]


def trial(cell, round=0, count=300, **more):
    """A trial with `count` samples of its latency."""
    latency = [1.0 + round / 100 + number / 10_000 for number in range(count)]
    figures = {
        "status": Status.OK,
        "latency_ms": latency[count // 2],
        "period_ms": 0.9,
        "peak_reserved_bytes": 2**28,
        "started_at": f"2026-03-01T09:3{round}:00+00:00",
        "kernels": 3,
        "samples": {"latency_ms": latency, "period_ms": [0.9, 0.91], "warmup_ms": [1.2, 1.1]},
        "extra": {
            "profile": {"calls": 12, "kernels_in_graphs": 3, "top": TOP},
            "preempted": round,
            "cache": {"hits": 1},
        },
    }
    return Trial(cell.key, round, **{**figures, **more})


def failed(cell, round=0):
    said = {"phase": "prepare", "extra": {"traceback": "Trace\nboom"}}
    return Trial(cell.key, round, Status.ERROR, "in prepare: boom", **said)


def record(path, cells_trials, *environments, **facts):
    """Record a sweep of these cells (by default on GPU); returns its id."""
    with Store.open(path, mode="write") as store:
        sweep_id = begun(store, list(cells_trials), rounds=2, **facts)
        for place in environments or [GPU]:
            environment_id = store.add_environment(place, {})
            for trials in cells_trials.values():
                for one in trials:
                    store.add_trial(sweep_id, environment_id, one)
    return sweep_id


def data_of(path, out):
    """The folder of data on the site of a database's only device sweep."""
    (own,) = report_of(path).device_sweeps
    return site(out, own) / own.slug / "data"


# --- one cell ---

CELL = a_cell()


def test_results_are_those_of_the_view(tmp_path):
    path = tmp_path / "r.db"
    record(path, {CELL: [trial(CELL), trial(CELL, 1, attempt=1)]})
    with Store.open(path) as store:
        (result,) = store.results()
    ((key, (entry,)),) = content(data_of(path, tmp_path / "site") / "cell-0.js").items()
    assert key == CELL.key
    for name, metric in METRICS.items():
        value = result.value(name)
        shown = entry["results"].get(name)
        assert (shown and shown["value"]) == value
        assert shown is None or shown["text"] == metric.format(value)
    assert entry["params"]["model.name"] == "mlp"
    assert entry["trials"] == [{"round": 0, "attempt": 0}, {"round": 1, "attempt": 1}]
    assert [timer["name"] for timer in entry["timers"]] == ["latency_ms", "period_ms", "warmup_ms"]


def test_facts_are_those_of_the_trials():
    found = facts([trial(CELL), trial(CELL, 1, disturbance="heat")])
    assert found["kernels"] == [3, 3]
    assert found["disturbance"] == [None, "heat"]
    assert found["preempted"] == [0, 1]
    assert found["cache.hits"] == [1, 1]
    assert "phase" not in found, "no trial has one"


def test_points_are_an_even_selection_of_the_samples():
    stored = np.arange(700, dtype="<f4")
    warmup, latency = StoredSamples(3, stored[:3]), StoredSamples(900, stored)
    found = timers([{"warmup_ms": warmup, "latency_ms": latency}])
    assert [timer["title"] for timer in found] == ["latency", "warm-up calls"]
    (drawn,) = found[0]["trials"]
    assert (drawn["taken"], drawn["stored"]) == (900, 700)
    points = np.frombuffer(base64.b64decode(drawn["points"]), "<f4")
    assert points.tolist() == np.linspace(0, 699, MOST_POINTS).astype(int).tolist()


def test_an_error_is_shown_once_with_its_trials():
    marked = trial(CELL, disturbance="heat")
    (error,) = errors([failed(CELL), marked, failed(CELL, 1)])
    assert error["reason"] == "in prepare: boom"
    assert error["traceback"] == "Trace\nboom"
    assert error["trials"] == [0, 2]


def test_kernels_are_those_of_an_undisturbed_trial_if_there_is_one():
    quiet = trial(CELL)
    busy = trial(CELL, disturbance="heat", extra={"profile": {"top": []}})
    assert profile([busy, quiet])["top"] == TOP
    assert profile([busy])["top"] == []
    assert profile([]) is None


# --- many cells ---


def test_a_sweep_that_goes_on_adds_nothing_to_what_was_read(tmp_path):
    graph = a_cell("cuda-graph")
    sweep_id = record(tmp_path / "r.db", {CELL: [trial(CELL, count=20)], graph: []})
    (own,) = report_of(tmp_path / "r.db").device_sweeps
    with Store.open(tmp_path / "r.db", mode="write") as store:
        store.add_trial(sweep_id, GPU.id, trial(graph, count=20))
    data = site(tmp_path / "site", own) / own.slug / "data"
    assert list(content(data / "cell-0.js")) == [CELL.key]


def test_files_have_some_cells_each_with_keys_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(cell_page, "CELLS_A_FILE", 2)
    cells = [a_cell(bs=bs) for bs in range(1, 6)]
    record(tmp_path / "r.db", {cell: [trial(cell, count=20)] for cell in cells})
    data = data_of(tmp_path / "r.db", tmp_path / "site")
    parts = content(data / "cell-index.js")["chunks"]
    files = [list(content(data.parent / part["file"])) for part in parts]
    assert [part["first_key"] for part in parts] == [keys[0] for keys in files]
    assert [*chain(*files)] == sorted(cell.key for cell in cells)

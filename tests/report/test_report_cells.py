"""What the site shows of a cell: numbers equal those that are stored, and every file is found by
its key."""

import base64
import dataclasses
import json
import re

import numpy as np
import pytest
from browsing import content, report_of, site
from made_sweeps import a_cell, a_result, environment
from whole_sweeps import begun

from effbench.cell import Status, Trial
from effbench.metrics import METRICS
from effbench.report.site import cell_data
from effbench.report.site.cell_data import FACTS, HEADINGS, POINTS, evenly
from effbench.report.site.pages import cell as cell_page
from effbench.report.site.pages import failures
from effbench.store import Store
from effbench.store.values import SAMPLE_LIMIT

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
                store.record(sweep_id, environment_id, one)
    return sweep_id


def written(path, out):
    """Write the site of a database's first device sweep; returns key -> entries, and the index."""
    site(out, report_of(path).device_sweeps[0])
    (folder,) = [one for one in out.iterdir() if (one / "cell.html").is_file()]
    found, about = {}, content(folder / "data" / "cell-index.js")
    for first, source in about["chunks"]:
        chunk = content(folder / source)
        assert next(iter(chunk)) == first
        found |= chunk
    return found, about


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two cells: eager with three rounds, one of them tried twice, and a failed one."""
    folder = tmp_path_factory.mktemp("cells")
    eager, graph = a_cell(), a_cell("cuda-graph")
    throttled = {"disturbance": "clocks reduced by heat"}
    trials = [
        trial(eager, 0),
        trial(eager, 1, **throttled),
        trial(eager, 1, 1, count=SAMPLE_LIMIT + 700),
        trial(eager, 2),
    ]
    sweep_id = record(folder / "r.db", {eager: trials, graph: [failed(graph), failed(graph, 1)]})
    found, _ = written(folder / "r.db", folder / "site")
    with Store.open(folder / "r.db") as store:
        rows = {row.cell_key: row for row in store.results(sweep_id)}
        stored = sorted(
            (row["round"], row["attempt"], row["id"], row)
            for row in store.trials(sweep_id)
            if row["cell_key"] == eager.key
        )
        samples = [store.samples(one)["latency_ms"] for _, _, one, _ in stored]
    return eager, graph, found, rows, [row for *_, row in stored], samples


def test_results_are_those_of_the_view(small):
    eager, graph, found, rows, *_ = small
    assert set(found) == {eager.key, graph.key}
    for key, (entry,) in found.items():
        row = rows[key]
        known = {
            name: [row.value(name), METRICS[name].format(row.value(name))]
            for name in METRICS
            if row.value(name) is not None
        }
        assert {name: one[:2] for name, one in entry["results"].items()} == known
        assert (entry["status"], entry["reason"], entry["count"]) == (
            row.status,
            row.reason,
            row.trials,
        )
        assert entry["params"]["model.name"] == row.params["model"]["name"]
    low, high = (
        METRICS["latency_ms"].format(rows[eager.key].value(f"latency_ci_{end}_ms"))
        for end in ("low", "high")
    )
    assert found[eager.key][0]["results"]["latency_ms"][2] == f"{low} to {high}"


def test_trials_are_those_of_the_table(small):
    eager, _, found, _, trials, _ = small
    (entry,) = found[eager.key]
    for row, values in zip(trials, entry["trials"], strict=True):
        expected = row | {"started_at": str(row["started_at"])[:19]}
        assert values == [expected[name] for name in FACTS]
    assert {"last phase", "started (UTC)"} < {name for name, _ in HEADINGS}
    assert entry["extra"]["preempted"] == [0, 1, 1, 2] and entry["extra"]["cache.hits"] == [
        1,
        1,
        1,
        1,
    ]


def test_samples_are_those_that_are_stored(small):
    eager, _, found, _, _, stored = small
    (entry,) = found[eager.key]
    shown = entry["samples"]["latency_ms"]
    assert [one["taken"] for one in shown] == [300, 300, SAMPLE_LIMIT + 700, 300]
    assert [one["stored"] for one in shown] == [300, 300, SAMPLE_LIMIT, 300]
    for number, (one, array) in enumerate(zip(shown, stored, strict=True)):
        points = np.frombuffer(base64.b64decode(one["points"]), "<f4")
        assert (
            one["trial"] == number and points.tolist() == array[evenly(len(array), POINTS)].tolist()
        )
    assert evenly(1000, 60)[[0, -1]].tolist() == [0, 999]
    many = cell_data.samples([{"latency_ms": (1000, np.arange(1000, dtype="<f4"))}] * 100)[
        "latency_ms"
    ]
    assert {len(base64.b64decode(one["points"])) for one in many} == {4 * 60}, (
        "many trials share the points"
    )


def test_failures_and_kernels(small):
    eager, graph, found, *_ = small
    (own,), (other,) = found[eager.key], found[graph.key]
    facts = {
        "status": "error",
        "reason": "in prepare: boom",
        "phase": "prepare",
        "traceback": "Trace\nboom",
    }
    assert other["errors"] == [facts | {"trials": [0, 1]}], "once, with its trials"
    assert other["samples"] == {} and other["kernels"] is None
    assert own["errors"] == [], "a marked trial is ok"
    assert own["disturbance"] is None, "its second attempt counts, which is not marked"
    kernels = own["kernels"]
    assert kernels["rows"] == [
        ["gemm<bf16>", 2.0, pytest.approx(0.3), pytest.approx(0.6), 3],
        ["add", 1.0, pytest.approx(0.2), pytest.approx(0.4), 3],
    ]
    assert (kernels["passes"], kernels["calls"], kernels["in_graphs"]) == (
        3,
        12,
        3,
    ), "without the marked trial"
    marked = {
        "disturbance": "busy",
        "extra": {"profile": {"calls": 12, "kernels_in_graphs": 3, "top": TOP}},
    }
    assert cell_data.kernels([marked, marked])["passes"] == 2, "nothing better is known"


def test_the_link_to_other_modes_names_the_whole_point(tmp_path):
    cells = [
        a_cell(mode, dtype=dtype)
        for mode in ("eager", "default")
        for dtype in ("float32", "bfloat16")
    ]
    record(tmp_path / "r.db", {cell: [trial(cell, count=20)] for cell in cells}, GPU, LATER)
    found, _ = written(tmp_path / "r.db", tmp_path / "site")
    entry, *_ = found[cells[0].key]
    assert entry["labels"] == {"model": "mlp", "dtype": "float32", "bs": 8}, "in every environment"


def test_a_sweep_that_goes_on_adds_nothing_to_what_was_read(tmp_path):
    eager, graph = a_cell(), a_cell("cuda-graph")
    sweep_id = record(tmp_path / "r.db", {eager: [trial(eager, count=20)], graph: []})
    (own,) = report_of(tmp_path / "r.db").device_sweeps
    with Store.open(tmp_path / "r.db", mode="write") as store:
        store.record(sweep_id, GPU.id, trial(graph, count=20))
    folder = site(tmp_path / "site", own) / own.slug
    assert list(content(folder / "data" / "cells-0.js")) == [eager.key]


def test_artifacts_come_with_the_site(tmp_path, monkeypatch):
    cell = a_cell()
    (tmp_path / "artifacts" / "a b").mkdir(parents=True)
    for name, text in [
        ("a b/tra ce.json.gz", "x"),
        ("page.html", "<script>"),
        ("large.txt", "x" * 2000),
    ]:
        (tmp_path / "artifacts" / name).write_text(text)
    (tmp_path.parent / "secret.txt").write_text("x")
    (tmp_path / "artifacts" / "link.txt").symlink_to(tmp_path.parent / "secret.txt")
    there = "artifacts/a b/tra ce.json.gz"
    gone = [
        "artifacts/gone.txt",
        "../secret.txt",
        "artifacts/link.txt",
        "javascript:alert(1)",
        "x" * 5000,
    ]
    left = ["artifacts/page.html", "artifacts/large.txt"]
    record(
        tmp_path / "r.db",
        {cell: [trial(cell, count=20, extra={"artifacts": [there, *gone, *left]})]},
    )
    monkeypatch.setattr(cell_data, "LARGEST", 1000)
    found, _ = written(tmp_path / "r.db", tmp_path / "site")
    links = {name: (link, why) for name, link, why in found[cell.key][0]["artifacts"]}
    link, why = links[there]
    assert re.fullmatch(r"files/[0-9a-f]{12}-tra_ce\.json\.gz", link) and why is None
    (path,) = (tmp_path / "site").glob(f"*/{link}")
    assert path.read_text() == "x"
    assert (
        f"{path.parents[1].name}/{link}"
        in json.loads((tmp_path / "site" / "site.json").read_text())["files"]
    )
    assert all(links[name] == (None, "file not found") for name in gone)
    assert all(links[name][0] is None and "not copied" in links[name][1] for name in left)
    assert not [
        path
        for path in (tmp_path / "site").rglob("*")
        if path.suffix == ".html" and "page" in path.name
    ]


def test_files_stay_small_and_keys_in_order(tmp_path):
    class Writer:
        @staticmethod
        def script(path, text):
            (tmp_path / path.rpartition("/")[2]).write_text(text)

    many = [
        (f"{number:04}", [{"text": "x" * 90_000, "value": float("nan")}]) for number in range(30)
    ]
    files = list(cell_data.write_cells(Writer, "", iter(many)))
    assert len(files) > 2 and [first for first, _ in files] == sorted(first for first, _ in files)
    assert all(path.stat().st_size < 1_000_000 for path in tmp_path.iterdir())
    found = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert sum(map(len, found)) == 30 and next(iter(found[0].values()))[0]["value"] is None


def test_each_gpu_is_there_once_with_its_newest_sweep_and_links_name_the_environment(tmp_path):
    """An older sweep ran on two GPUs, a newer one on the first of them alone, with two versions of
    torch."""
    eager, path = a_cell(), tmp_path / "r.db"
    older = record(
        path, {eager: [trial(eager)]}, GPU, dataclasses.replace(GPU, gpu_name="NVIDIA A100")
    )
    newer = record(path, {eager: [trial(eager)]})
    with Store.open(path, mode="write") as store:
        bad = store.add_environment(LATER, {})
        store.record(newer, bad, Trial(eager.key, 0, Status.CRASHED, "died"))
    own, other = sorted(report_of(path).device_sweeps, key=lambda one: one.hardware != GPU.gpu_name)
    assert [(one.hardware, one.sweep.id) for one in (own, other)] == [
        (GPU.gpu_name, newer),
        ("NVIDIA A100", older),
    ]
    assert len(report_of(path, [older]).device_sweeps) == 2
    link = f"#cell={eager.key[:16]}&env={bad}"
    (row,) = failures.failures_table(own, "").rows
    assert row["example"].link == f"cell.html{link}"
    hostile = a_result(cell_key="../../x", environment_id="&")
    assert cell_page.link(own, hostile) == "cell.html#cell=..%2F..%2Fx&env=%26"
    found, about = written(path, tmp_path / "site")
    assert (
        {entry["env"] for entry in found[eager.key]}
        == {GPU.id, LATER.id}
        == set(about["environments"])
    )

"""What the site says of a cell: numbers equal those that are stored, and every file is found by its key."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import re

import numpy as np
import pytest
from browsing import site, subject
from made_sweeps import a_cell

from effbench.cell import Environment, Status, Trial
from effbench.commands.material import gather
from effbench.metrics import METRICS
from effbench.report.site import cells
from effbench.report.site.material import TrialFacts
from effbench.report.site.packing import BINS, POINTS, evenly, packed
from effbench.report.site.pages.cell import write_chunks
from effbench.store import Store
from effbench.store.values import SAMPLE_LIMIT

GPU = Environment("NVIDIA H200", 2**37, "570.1", "12.8", "2.13.0", "3.5", "3.12.4", "Xeon", "Linux")
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
        "latency_ms": float(np.median(latency)), "latency_samples": count, "period_ms": 0.9, "warmup_calls": 12,
        "steady": True, "compile_s": 9.0 - round, "compile_cache": "warm" if round else "cold", "sm_clock_mhz": 1980,
        "peak_reserved_bytes": 2**28, "started_at": f"2026-03-01T09:3{round}:00+00:00", "kernels": 3, "wall_s": 4.5,
        "samples": {"latency_ms": latency, "period_ms": draws(99, 40, 0.9), "warmup_ms": draws(98, 12, 1.2)},
        "extra": {"profile": {"calls": 12, "kernels_in_graphs": 3, "top": TOP}, "preempted": round,
                  "cache": {"hits": 1, "misses": 0}},
    }  # fmt: skip
    return Trial(cell.key, round, Status(more.pop("status", "ok")), attempt=attempt, **{**figures, **more})


def record(path, cells_trials, env=GPU, **facts):
    """A sweep of these cells; returns its id."""
    known = {"name": None, "label": None, "command": [], "overrides": [], "protocol": {"name": "quick", "rounds": 1},
             "baseline_mode": "eager", "seed": 0, "git_revision": None, "host": {}, "rounds": 2}  # fmt: skip
    with Store.open(path, mode="write") as store:
        sweep_id = store.begin_sweep(plan=list(cells_trials), **(known | facts))
        environments = [store.add_environment(one, {}) for one in ([env] if isinstance(env, Environment) else env)]
        for environment in environments:
            for trials in cells_trials.values():
                for one in trials:
                    store.record(sweep_id, environment, one)
    return sweep_id


def written(path, out):
    """The site of a database: key -> entries, and the index."""
    with Store.open(path) as store:
        material = gather(store, str(path))
        site(out, *material.subjects)
    (folder,) = [one for one in out.iterdir() if (one / "cell.html").is_file()]
    return read(folder)


def read(folder):
    index = content(folder / "data" / "cell-index.js")
    found = {}
    for first, source in index["chunks"]:
        chunk = content(folder / source)
        assert next(iter(chunk)) == first
        found |= chunk
    return found, index


def content(path):
    return json.loads(re.fullmatch(r"effbench\.put\((.*)\);\n", path.read_text(encoding="utf-8"), re.DOTALL)[1])


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two cells: eager with three rounds, one of them tried twice, and a failed one."""
    folder = tmp_path_factory.mktemp("cells")
    eager, graph = a_cell(), a_cell("cuda-graph")
    noisy = {"status": "noisy", "reason": "throttled"}
    failed = Trial(graph.key, 0, Status.ERROR, "in prepare: boom", phase="prepare", extra={"traceback": "Trace\nboom"})
    trials = [trial(eager, 0), trial(eager, 1, **noisy), trial(eager, 1, 1, count=SAMPLE_LIMIT + 700), trial(eager, 2)]
    sweep_id = record(folder / "r.db", {eager: trials, graph: [failed, dataclasses.replace(failed, round=1)]})
    found, index = written(folder / "r.db", folder / "site")
    return folder / "r.db", sweep_id, eager, graph, found, index


def test_results_are_those_of_the_view(small):
    path, sweep_id, eager, graph, found, _ = small
    with Store.open(path) as store:
        rows = {row["cell_key"]: row for row in store.results(sweep_id)}
    assert set(found) == {eager.key, graph.key}
    for key, (entry,) in found.items():
        row = rows[key]
        values = {name: one[0] for name, one in entry["results"].items()}
        assert values == {name: row[name] for name in METRICS if row[name] is not None}
        assert all(text == METRICS[name].format(row[name]) for name, (_, text, _) in entry["results"].items())
        assert (entry["status"], entry["reason"], entry["count"]) == (row["status"], row["reason"], row["trials"])
        assert entry["params"] == row["params"]
    low, high = (METRICS["latency_ms"].format(rows[eager.key][f"latency_ci_{end}_ms"]) for end in ("low", "high"))
    assert found[eager.key][0]["results"]["latency_ms"][2] == f"{low} to {high}"


def test_trials_are_those_of_the_table(small):
    path, sweep_id, eager, _, found, index = small
    (entry,) = found[eager.key]
    with Store.open(path) as store:
        rows = [row for row in store.trials(sweep_id) if row["cell_key"] == eager.key]
    rows.sort(key=lambda row: (row["round"], row["attempt"]))
    assert [(one[0], one[1]) for one in entry["trials"]] == [(0, 0), (1, 0), (1, 1), (2, 0)]
    assert [fact[0] for fact in index["facts"]] == [fact.title for fact in cells.FACTS]
    for row, values in zip(rows, entry["trials"], strict=True):
        for fact, value in zip(cells.FACTS, values, strict=True):
            assert value == (f"{row['started_at']:%Y-%m-%d %H:%M:%S}" if fact.name == "started_at" else row[fact.name])
    assert entry["short"]["preempted"] == [0, 1, 1, 2]
    assert entry["short"]["cache.hits"] == [1, 1, 1, 1]


def test_samples_are_those_that_are_stored(small):
    path, sweep_id, eager, _, found, _ = small
    (entry,) = found[eager.key]
    with Store.open(path) as store:
        ids = sorted(
            (row["round"], row["attempt"], row["id"]) for row in store.trials(sweep_id) if row["cell_key"] == eager.key
        )
        stored = [store.samples(one)["latency_ms"] for _, _, one in ids]
    told = entry["samples"]["latency_ms"]
    assert told["taken"] == [300, 300, SAMPLE_LIMIT + 700, 300]
    assert told["stored"] == [300, 300, SAMPLE_LIMIT, 300] and told["shown"] == [POINTS] * 4
    points = np.frombuffer(base64.b64decode(told["points"]), "<f4").reshape(4, POINTS)
    for own, array in zip(points, stored, strict=True):
        assert own.tolist() == array[evenly(len(array), POINTS)].tolist()
    edges = np.linspace(told["low"], told["high"], BINS + 1)
    for counts, array in zip(told["counts"], stored, strict=True):
        assert sum(counts) == len(array)
        assert counts[-1] == int((array > told["high"]).sum())
        expected = np.histogram(array, edges)[0]
        assert np.abs(np.cumsum(expected) - np.cumsum(counts[:-1])).max() <= 1  # one that lies on an edge
    assert set(entry["samples"]) == {"latency_ms", "period_ms", "warmup_ms"}
    assert entry["samples"]["warmup_ms"]["shown"] == [12] * 4


def test_a_failure_is_told_once_with_its_trials(small):
    *_, eager, graph, found, _ = small
    (entry,) = found[graph.key]
    assert entry["errors"] == [
        {
            "status": "error",
            "reason": "in prepare: boom",
            "phase": "prepare",
            "traceback": "Trace\nboom",
            "trials": [0, 1],
        }
    ]
    assert entry["samples"] == {} and entry["kernels"] is None
    assert [one["status"] for one in found[eager.key][0]["errors"]] == ["noisy"]


def test_kernels_are_means_over_passes(small):
    *_, eager, _, found, _ = small
    told = found[eager.key][0]["kernels"]
    assert told["rows"] == [["gemm<bf16>", 2.0, pytest.approx(0.3), pytest.approx(0.6), 4],
                            ["add", 1.0, pytest.approx(0.2), pytest.approx(0.4), 4]]  # fmt: skip
    assert (told["passes"], told["calls"], told["in_graphs"]) == (4, 12, 3)


def test_neighbours_lead_to_each_other(small):
    *_, eager, graph, found, _ = small
    (own,), (other,) = found[eager.key], found[graph.key]
    assert [one[0] for one in own["modes"]] == ["cuda-graph"] and own["modes"][0][3] == graph.key[:16]
    assert other["modes"][0][3:6] == [eager.key[:16], own["env"], "ok"]


def test_two_environments_of_a_cell_are_two_entries(tmp_path):
    cell = a_cell()
    later = dataclasses.replace(GPU, torch_version="2.14.0")
    record(tmp_path / "r.db", {cell: [trial(cell, 0, count=20), trial(cell, 1, count=20)]}, [GPU, later])
    found, index = written(tmp_path / "r.db", tmp_path / "site")
    assert {entry["env"] for entry in found[cell.key]} == {GPU.id, later.id} == set(index["environments"])
    assert all(len(entry["trials"]) == 2 for entry in found[cell.key])


def test_a_sweep_that_goes_on_adds_nothing_to_what_was_read(tmp_path):
    eager, graph = a_cell(), a_cell("cuda-graph")
    sweep_id = record(tmp_path / "r.db", {eager: [trial(eager, count=20)], graph: []})
    with Store.open(tmp_path / "r.db") as store:
        material = gather(store, "r.db")
        with Store.open(tmp_path / "r.db", mode="write") as other:
            other.record(sweep_id, GPU.id, trial(graph, count=20))
        out = site(tmp_path / "site", *material.subjects)
    found, _ = read(out / material.subjects[0].slug)
    assert list(found) == [eager.key]


def test_artifacts_come_with_the_site(tmp_path, monkeypatch):
    cell = a_cell()
    (tmp_path / "artifacts" / "a b").mkdir(parents=True)
    (tmp_path / "artifacts" / "a b" / "tra ce.json.gz").write_bytes(b"x")
    (tmp_path / "artifacts" / "page.html").write_bytes(b"<script>alert(1)</script>")
    (tmp_path / "artifacts" / "large.txt").write_bytes(b"x" * 2000)
    (tmp_path.parent / "secret.txt").write_text("x")
    (tmp_path / "artifacts" / "link.txt").symlink_to(tmp_path.parent / "secret.txt")
    there = "artifacts/a b/tra ce.json.gz"
    gone = ["artifacts/gone.txt", "../secret.txt", "artifacts/link.txt", "javascript:alert(1)", "x" * 5000]
    beside = ["artifacts/page.html", "artifacts/large.txt"]
    record(tmp_path / "r.db", {cell: [trial(cell, count=20, extra={"artifacts": [there, *gone, *beside]})]})
    monkeypatch.setattr("effbench.report.site.files.LARGEST", 1000)
    found, _ = written(tmp_path / "r.db", tmp_path / "site")
    links = {name: (link, why) for name, link, why in found[cell.key][0]["artifacts"]}
    link, why = links[there]
    assert re.fullmatch(r"files/[0-9a-f]{12}-tra_ce\.json\.gz", link) and why is None
    (folder,) = [one for one in (tmp_path / "site").iterdir() if (one / "cell.html").is_file()]
    assert (folder / link).read_bytes() == b"x"
    assert f"{folder.name}/{link}" in json.loads((tmp_path / "site" / "site.json").read_text())["files"]
    assert all(links[name] == (None, "not there") for name in gone)
    assert [links[name] for name in beside] == [
        (None, "25 B, left beside the database"), (None, "1.95 KiB, left beside the database"),
    ]  # fmt: skip
    assert not [path for path in (tmp_path / "site").rglob("*") if path.suffix == ".html" and "page" in path.name]


def test_samples_that_are_no_numbers():
    odd = np.array([1.0, np.nan, 2.0, np.inf], dtype="<f4")
    told = packed([odd, np.array([np.nan], dtype="<f4"), np.ones(3, dtype="<f4")])
    assert [sum(row) for row in told["counts"]] == [2, 0, 3]
    assert json.dumps(told, allow_nan=False)
    assert packed([np.array([np.nan], dtype="<f4")])["low"] is None
    same = packed([np.full(5, 0.25, dtype="<f4")])
    assert same["low"] == 0.25 < same["high"] and sum(same["counts"][0][:-1]) == 5


def test_many_trials_share_the_points():
    told = packed([np.arange(1000, dtype="<f4")] * 100)
    assert told["shown"] == [60] * 100
    assert evenly(1000, 60)[[0, -1]].tolist() == [0, 999]


def test_files_stay_small_and_keys_in_order(tmp_path):
    class Folder:
        folder = ""

        class writer:
            @staticmethod
            def json(path, text):
                (tmp_path / path.rpartition("/")[2]).write_text(text)

    many = [(f"{number:04}", [{"text": "x" * 90_000}]) for number in range(30)]
    chunks = list(write_chunks(Folder, iter(many)))
    assert len(chunks) > 2 and [first for first, _ in chunks] == sorted(first for first, _ in chunks)
    assert all(path.stat().st_size < 1_000_000 for path in tmp_path.iterdir())
    assert sum(len(json.loads(path.read_text())) for path in tmp_path.iterdir()) == 30
    with pytest.raises(ValueError, match="order"):
        list(write_chunks(Folder, iter(reversed(many))))


def test_several_processes_write_what_one_writes(tmp_path, monkeypatch):
    from effbench.report.site.pages import cell as cell_page

    made = {a_cell(bs=size): [trial(a_cell(bs=size), number, count=20) for number in range(3)] for size in range(1, 8)}
    record(tmp_path / "r.db", made)
    alone, _ = written(tmp_path / "r.db", tmp_path / "alone")
    monkeypatch.setattr(cell_page, "MANY_TRIALS", 1)
    monkeypatch.setattr(cell_page, "processes", lambda: 3)
    together, index = written(tmp_path / "r.db", tmp_path / "together")
    assert together == alone and len(index["chunks"]) == 3
    listed = json.loads((tmp_path / "together" / "site.json").read_text())["files"]
    assert all(any(path.endswith(source) for path in listed) for _, source in index["chunks"])


def test_what_fails_in_another_process_is_raised_here():
    from effbench.report.site.parts import in_parts

    def work(part):
        if part:
            raise ValueError("part 1")
        return part

    with pytest.raises(ValueError, match="part 1"):
        in_parts(2, work)
    with pytest.raises(RuntimeError, match="ended with code 7"):
        in_parts(1, lambda part: os._exit(7))


def test_nan_in_extra_is_nothing(tmp_path):
    one = subject([])
    assert cells.more([TrialFacts({"extra": {"a": None, "long": "x" * 99}}, {})]) == ({}, {"long": "x" * 99})
    assert one.command({}, "") == (None, "nobody said how")


def test_short_keys():
    assert cells.short_key("a" * 64) == "a" * 16
    assert cells.short_key("../../x" + "0" * 57) == "../../x" + "0" * 57


def test_each_gpu_is_there_once_with_its_newest_sweep(tmp_path):
    """An older sweep ran on two GPUs, a newer one on the first of them alone."""
    eager = a_cell()
    other = dataclasses.replace(GPU, gpu_name="NVIDIA A100")
    older = record(tmp_path / "r.db", {eager: [trial(eager)]}, [GPU, other])
    newer = record(tmp_path / "r.db", {eager: [trial(eager)]}, GPU)
    with Store.open(tmp_path / "r.db") as store:
        found = [(one.hardware, one.sweep["id"]) for one in gather(store, "r.db").subjects]
        asked = [(one.hardware, one.sweep["id"]) for one in gather(store, "r.db", [older]).subjects]
    assert sorted(found) == sorted([(GPU.gpu_name, newer), ("NVIDIA A100", older)])
    assert len(asked) == 2


def test_links_to_failures_lead_to_the_environment_that_failed(tmp_path):
    from effbench.report.site.pages import failures, index

    eager = a_cell()
    later = dataclasses.replace(GPU, torch_version="2.14.0")
    with Store.open(tmp_path / "r.db", mode="write") as store:
        sweep = store.begin_sweep(plan=[eager], name=None, label=None, command=[], overrides=[], rounds=1, protocol={},
                                  baseline_mode="eager", seed=0, git_revision=None, host={})  # fmt: skip
        good, bad = (store.add_environment(one, {}) for one in (GPU, later))
        store.record(sweep, good, trial(eager))
        store.record(sweep, bad, Trial(eager.key, 0, Status.CRASHED, "died"))
        (one,) = gather(store, "r.db").subjects
    measured, _ = failures.named(one)
    link = f"#cell={eager.key[:16]}&env={bad}"
    assert failures.groups_of(failures.worst_first(measured))[0].cells[0][0] == f"cell.html{link}"
    assert index.answer(one)["not_ok"]["rows"][0]["link"] == link

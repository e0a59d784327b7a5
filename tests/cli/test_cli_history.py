"""`effbench history` over databases of known figures."""

import json
import shutil
from pathlib import Path

import pytest
from made_sweeps import a_cell, copied, environment, spread

from effbench.core.cell import Status
from effbench.render import data
from effbench.store import Store

OLD = environment(torch_version="2.11.0")
SLOWER, STEADY, BREAKS = a_cell("default", "net"), a_cell("eager", "net"), a_cell("fancy", "other")
FAILED = {"status": Status.ERROR, "reason": "it does not compile any more"}


@pytest.fixture(scope="module")
def filled(empty_db, tmp_path_factory):
    """16 sweeps: from v4 on one cell has graph breaks, from v8 on it is slower, from v12 on another
    one fails."""
    made = copied(empty_db, tmp_path_factory.mktemp("history") / "h.db")
    for number in range(16):
        slower = spread(1.1 if number >= 8 else 1.0, 0.003, seed=number)
        cells = {
            SLOWER: {"latency_ms": slower, "graph_breaks": 2 if number >= 4 else 0},
            STEADY: {"latency_ms": spread(1.0, 0.003, seed=100 + number)},
            BREAKS: FAILED if number >= 12 else {},
        }
        made.sweep(cells, env=None if number >= 8 else OLD, label=f"v{number}")
    return made.path


@pytest.fixture
def db(filled, made):
    shutil.copy(filled, made.path)
    return made


@pytest.fixture
def history(effbench):
    def call(*words, code=0):
        done = effbench("history", *words)
        assert done.code == code, done.err
        return done.out if code == 0 else done.err

    return call


@pytest.fixture
def read(history):
    return lambda *words: json.loads(history(*words, "--format", "json"))


def latencies(found):
    """State and label of each change of the latency."""
    return [
        (change["state"], change["after_label"])
        for change in found["changes"]
        if change["metric"] == "latency_ms"
    ]


def test_what_changed_and_with_what(db, read):
    broken, slower, breaks = read()["changes"]
    assert (slower["word"], slower["metric"]) == ("slower", "latency_ms")
    assert (slower["before_label"], slower["after_label"]) == ("v7", "v8")
    assert slower["state"] == "open" and slower["low"] < 1.1 < slower["high"]
    assert slower["coincides"] == ["torch 2.11.0 -> 2.13.0"]
    assert (breaks["metric"], breaks["old"], breaks["new"]) == ("graph_breaks", 0, 2)
    assert (broken["word"], broken["reason"]) == ("broken", "it does not compile any more")
    assert broken["cell"].startswith("other bs=8 fancy")


def test_the_table(db, history):
    out = history()
    line = next(line for line in out.splitlines() if "latency_ms" in line)
    for text in ("slower", "1.1", "open", "coincides with torch 2.11.0 -> 2.13.0"):
        assert text in line
    assert "changes: 3 (3 open)" in out
    assert history("--out", "x/h.txt") == "" and "slower" in Path("x/h.txt").read_text()


def test_a_metric_is_chosen(db, read):
    found = read("--metric", "latency_ms", "--metric", "speedup")
    assert [change["metric"] for change in found["changes"]] == ["status", "speedup", "latency_ms"]


def test_exceptions_of_checks_are_no_changes(db, read):
    Path("mine.yaml").write_text("exceptions: [{metric: status, ignore: true, reason: known}]")
    metrics = [change["metric"] for change in read("--config", "mine.yaml")["changes"]]
    assert metrics == ["latency_ms", "graph_breaks"]


def test_no_data(made, history):
    assert "holds no sweep yet" in history("--format", "json", code=3)
    made.sweep({STEADY: None})
    assert history() == "no results yet, so no history\n"


def test_too_few_sweeps_are_one_line(made, history):
    for number in range(4):
        made.sweep([STEADY, a_cell("default", f"net{number}")])
    (line,) = history().splitlines()
    assert line.startswith("changes: 0 (0 open) · judged series: 4 of ")
    assert "times need 6 sweeps, counters 4" in line


def test_re_runs_make_no_history(made, read):
    """One sweep of a pull request and its re-runs are one odd sweep."""
    sweeps = [made.sweep([STEADY], label=f"main{number}") for number in range(8)]
    sweeps.append(made.sweep({STEADY: {"latency_ms": 1.1}}, label="pr"))
    made.sweep({STEADY: {"latency_ms": 1.1}}, name=f"confirm:{sweeps[-1]}", label="pr")
    found = read()
    assert "cells: 1 · sweeps: 9" in found["summary"]


@pytest.fixture
def lines(made):
    """Main and pull requests in turns; then main is slower."""
    for number in range(10):
        levels = {"main": 1.0 if number < 6 else 1.3, f"pr-{number}": 1.1, None: 1.1}
        for name, level in levels.items():
            made.sweep({STEADY: {"latency_ms": level}}, name=name, label=f"{name}{number}")
    return made


def test_a_line(lines, history, read):
    found = read("--name", "main")
    assert "sweeps: 10" in found["summary"]
    assert latencies(found) == [("open", "main6")]
    assert "no sweep has the name 'mian'" in history("--name", "mian", code=3)


def test_a_report_compares_with_a_sweep_of_the_same_name(lines):
    with Store.open(lines.path) as store:
        shown = data.read(store, "made", ["main"])
    assert shown.device_sweeps[0].changes.previous.label == "main8"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--metric flops", 2, "unknown metric 'flops'; allowed: latency_ms, "),
        ("--name \udcff", 3, "no sweep has the name"),
    ],
)
def test_what_is_refused(db, effbench, words, code, said):
    done = effbench("history", *words.split())
    assert done.code == code and said in done.err

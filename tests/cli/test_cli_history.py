"""`effbench history` over databases of known figures."""

import datetime as dt
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


def latencies(events):
    return [(one["kind"], one["after_label"]) for one in events if one["metric"] == "latency_ms"]


def test_what_changed_and_with_what(db, read):
    broken, slower, breaks = read()["changes"]
    assert (slower["word"], slower["metric"]) == ("slower", "latency_ms")
    assert (slower["before_label"], slower["after_label"]) == ("v7", "v8")
    assert slower["alarms"] and slower["low"] < 1.1 < slower["high"]
    assert slower["coincides"] == ["torch 2.11.0 -> 2.13.0"]
    assert (breaks["metric"], breaks["old"], breaks["new"]) == ("graph_breaks", 0, 2)
    assert (broken["kind"], broken["after_label"]) == ("broken", "v12")
    assert broken["reason"] == "it does not compile any more"
    assert broken["cell"].startswith("other bs=8 fancy")


def test_the_table(db, history):
    out = history()
    line = next(line for line in out.splitlines() if "latency_ms" in line)
    for text in ("slower", "1.1", "open", "coincides with torch 2.11.0 -> 2.13.0"):
        assert text in line
    assert "changes: 3 (3 open)" in out and "to accept one, add to this command: ack " in out
    assert history("--out", "x/h.txt") == "" and "slower" in Path("x/h.txt").read_text()


@pytest.mark.parametrize(
    ("words", "metrics"),
    [
        ("--metric latency_ms --metric speedup", ["status", "speedup", "latency_ms"]),
        ("--metric speedup --model net", ["speedup"]),
        ("--mode fancy", ["status"]),
        ("--since 2020-01-01", ["status", "latency_ms", "graph_breaks"]),
        ("--since v8", ["status", "latency_ms"]),
        ("--since v9", ["status"]),
        ("--since last", []),
        ("--since 2130-01-01T00:00", []),
    ],
)
def test_filters(db, read, words, metrics):
    assert [one["metric"] for one in read(*words.split())["changes"]] == metrics


def test_two_machines_with_the_same_hardware(made, history, read):
    for number in range(24):
        host = "b" if number > 11 else "a"
        value = (1.1 if host == "b" else 1.0) * (1 + 0.001 * (number % 3))
        made.sweep({STEADY: {"latency_ms": value}}, host={"hostname": host})
    (change,) = [one for one in read()["changes"] if one["metric"] == "latency_ms"]
    assert change["coincides"] == ["host a -> b"]
    found = read("--host", "a")
    assert found["changes"] == found["recent"] == [] and "sweeps: 12" in found["summary"]
    assert "sweeps: 24" in history("--host", "a", "--host", "b")
    assert "hosts a, b" in history("--host", "c", code=3)


def test_no_data(made, history):
    assert "holds no sweep yet" in history("--format", "json", code=3)
    made.sweep({STEADY: None})
    assert history() == "no results yet, so no history\n"


@pytest.mark.parametrize("sweeps", [1, 4])
def test_too_few_sweeps_are_one_line(made, history, sweeps):
    for number in range(sweeps):
        made.sweep([STEADY, *(a_cell("default", f"net{number}-{cell}") for cell in range(31))])
    (line,) = history().splitlines()
    assert line.startswith("too short to judge: ") and "times need 6 sweeps, counters 4" in line


def test_re_runs_make_no_history(made, read):
    """One sweep of a pull request and its re-runs are one odd sweep."""
    sweeps = [made.sweep([STEADY], label=f"main{number}") for number in range(8)]
    sweeps.append(made.sweep({STEADY: {"latency_ms": 1.1}}, label="pr"))
    again = made.sweep({STEADY: {"latency_ms": 1.1}}, name=f"confirm:{sweeps[-1]}", label="pr")
    found = read()
    assert found["changes"] == []
    assert latencies(found["recent"]) == [("recent", "pr")]
    assert "cells: 1 · sweeps: 9" in found["summary"]
    with Store.open(made.path) as store:
        shown = data.read(store, "made", [again])
    # of a re-run that is looked at it is still known which sweep came before
    assert shown.device_sweeps[0].changes.previous.id == sweeps[-1]


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
    assert "sweeps: 10" in found["summary"] and "sweeps: 10" in read("--name", "")["summary"]
    assert latencies(found["changes"]) == [("change", "main6")]
    assert latencies(read("--name", "main", "--since", "pr-66")["changes"]) == []
    assert "names '', 'main', 'pr-0'" in history("--name", "mian", code=3)
    change = found["changes"][0]["id"]
    assert f"acknowledged {change}" in history("ack", change, "--name", "main", "--reason", "why")
    assert latencies(read("--name", "main")["changes"]) == []
    assert change in history("acks", "--name", "main")
    assert change not in history("acks", "--name", "")
    assert "removed" in history("--name", "main", "ack", "--rm", change)


@pytest.mark.parametrize(
    ("reference", "baseline", "before"),
    [("main", None, "main8"), ("pr-9", None, "main9"), ("pr-9", "v1", "main5")],
)
def test_a_report_compares_with_a_sweep_of_the_same_name(lines, reference, baseline, before):
    with Store.open(lines.path, mode="write") as store:
        store.set_baseline("v1", next(info.id for info in store.sweeps() if info.label == "main5"))
        shown = data.read(store, "made", [reference], baseline=baseline)
    changes = shown.device_sweeps[0].changes
    assert (changes.previous.label, changes.is_baseline) == (before, before == "main5")


def ids(read):
    return {one["word"]: one["id"] for one in read()["changes"]}


def test_an_acknowledged_change_is_omitted_and_taken_back(db, history, read):
    known = ids(read)
    assert history("ack", known["slower"], "--reason", "first").startswith(
        f"acknowledged {known['slower']}: slower"
    )
    history("ack", known["slower"], "--reason", "no text: \udcff")  # another reason
    history("ack", known["slower"], "--reason", "more checks")
    assert ids(read) == {word: known[word] for word in ("broken", "more")}
    assert "1 acknowledged and omitted" in history()
    shown = next(one for one in read("--all")["changes"] if one["word"] == "slower")
    assert (shown["acknowledged"], shown["alarms"]) == ("more checks", False)
    listed = history("acks")
    assert listed.count(known["slower"]) == 1 and "more checks" in listed
    assert "removed" in history("ack", "--rm", known["slower"])
    assert ids(read)["slower"] == known["slower"]


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("model=n*", "metric=latency*"), {"broken", "more"}),
        (("mode=fancy",), {"slower", "more"}),
        (("model=net",), {"broken"}),
    ],
)
def test_patterns(db, history, read, words, left):
    history("ack", words[0], "--reason", "known", *words[1:])
    assert set(ids(read)) == left


def test_filters_before_ack_limit_what_it_acknowledges(db, history, read):
    history("--mode", "fancy", "--host", "a", "ack", "metric=*", "--reason", "known", code=3)
    history("--mode", "fancy", "ack", "metric=*", "--reason", "known")
    assert set(ids(read)) == {"slower", "more"}


def test_a_sweep_of_the_future_is_the_oldest(made, read):
    """Otherwise it would hide for ever that the newest one failed."""
    made.sweep([STEADY], label="future", started_at=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    for number in range(4):
        made.sweep({STEADY: FAILED if number == 3 else {}}, label=f"v{number}")
    (broken,) = read()["changes"]
    assert (broken["kind"], broken["before_label"], broken["after_label"]) == ("broken", "v2", "v3")
    assert read("--since", "last")["changes"] == [broken]


def test_an_unconfirmed_change_is_not_acknowledged(made, history, read):
    """The sweeps that confirm it may show a larger one."""
    for number in range(12):
        level = spread(1.05 if number == 11 else 1.0, 0.003, seed=number)
        made.sweep({STEADY: {"latency_ms": level}})
    (recent,) = (one for one in read()["recent"] if one["metric"] == "latency_ms")
    assert "is unconfirmed" in history("ack", recent["id"], "--reason", "small", code=2)
    assert "no unacknowledged change" in history("ack", "model=net", "--reason", "x", code=2)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("ack 3f9a2c", 2, "needs changes and a reason"),
        ("ack ffffffffffff --reason x", 2, "no ids start with"),
        ("ack --rm ffffffffffff", 2, "no ids start with"),
        ("ack model=nothing --reason x", 2, "no unacknowledged change matches model=nothing"),
        ("ack x --rm 3f9a2c", 2, "omit changes and --reason"),
        ("ack model=net --reason x --db no.db", 2, "no database at no.db in the folder "),
        ("ack modle=net --reason x", 2, "unknown pattern modle=; choose from model"),
        ("--since yesterday", 2, "expected a date"),
        ("--metric flops", 2, "has no history"),
        ("--model nothing", 3, "available: models net, other"),
        ("--mode \udcff", 3, "modes default, eager, fancy"),
    ],
)
def test_what_is_refused(db, effbench, words, code, said):
    done = effbench("history", *words.split())
    assert done.code == code and said in done.err


def test_options_before_and_after_a_subcommand(db, effbench):
    assert effbench("history", "--db", str(db.path), "acks").out == "no acknowledgements\n"

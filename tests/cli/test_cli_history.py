"""`effbench history` over databases of known figures."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest
import sqlalchemy as sa
from whole_sweeps import begun

from effbench import cli
from effbench.cell import Cell, Environment, Status, Trial
from effbench.store import Store
from effbench.store.schema import SweepRow

OLD = Environment(None, None, None, None, "2.11.0", None, "3.12", "Xeon", "Linux")
NEW = Environment(None, None, None, None, "2.13.0", None, "3.12", "Xeon", "Linux")


def cell(mode, model="net"):
    model = {"name": model, "module": {"_target_": "a.Net"}, "inputs": []}
    return Cell(model, 8, {"name": mode, "_target_": f"m.{mode}"}, "float32", "inference", "cpu")


SLOWER, STEADY, BREAKS = cell("default"), cell("eager"), cell("fancy", model="other")


def add_sweep(store, number, trials, environment=OLD, cells=(SLOWER, STEADY, BREAKS), host="node"):
    """One sweep a day, labelled by its number; `trials` makes those of a cell."""
    sweep = begun(store, cells, name=None, label=f"v{number}", host={"hostname": host}, rounds=3)
    store.add_environment(environment, {})
    for one in cells:
        for trial in trials(one):
            store.record(sweep, environment.id, trial)
    store.finish_sweep(sweep, "completed")
    with store._writing() as connection:
        started = dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(days=number)
        connection.execute(sa.update(SweepRow).where(SweepRow.id == sweep).values(started_at=started))
    return sweep


def add_latencies(path, latencies, hosts=None):
    """One sweep of STEADY for each latency."""
    with Store.open(path, mode="write") as store:
        for number, value in enumerate(latencies):

            def trials(one, value=value):
                return [Trial(one.key, 0, Status.OK, latency_ms=value)]

            add_sweep(store, number, trials, cells=[STEADY], host=hosts[number] if hosts else "node")
    return str(path)


def fill(path, sweeps=16, slower_from=8, broken_from=12):
    random = np.random.default_rng(0)
    with Store.open(path, mode="write") as store:
        for number in range(sweeps):

            def trials(one, number=number):
                if one is BREAKS and number >= broken_from:
                    return [Trial(one.key, 0, Status.ERROR, "it does not compile any more")]
                factor = 1.1 if one is SLOWER and number >= slower_from else 1.0
                sweep = random.normal(0, 0.003)
                latencies = [factor * math.exp(sweep + random.normal(0, 0.003)) for _ in range(3)]
                breaks = 2 if one is SLOWER and number >= 4 else 0
                return [
                    Trial(one.key, n, Status.OK, latency_ms=value, graph_breaks=breaks)
                    for n, value in enumerate(latencies)
                ]

            add_sweep(store, number, trials, NEW if number >= slower_from else OLD)
    return str(path)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("history") / "h.db")


@pytest.fixture
def db(filled, tmp_path):
    """A copy that a test may write to."""
    path = tmp_path / "h.db"
    shutil.copy(filled, path)
    return str(path)


@pytest.fixture
def history(db, capsys):
    def run(*words, code=0, db=db):
        assert cli.run(["history", *words, "--db", db]) == code
        done = capsys.readouterr()
        return done.out if code == 0 else done.err

    return run


@pytest.fixture
def read(history):
    return lambda *words, **more: json.loads(history("--format", "json", *words, **more))


def sweep_labelled(db, label):
    with Store.open(db) as store:
        return next(sweep.id for sweep in store.sweeps() if sweep.label == label)


# --- what is shown ---


def test_what_changed_and_with_what(read):
    broken, slower, breaks = read()["changes"]
    assert (slower["word"], slower["metric"]) == ("slower", "latency_ms")
    assert (slower["before_label"], slower["after_label"]) == ("v7", "v8")
    assert slower["alarms"] and slower["low"] < 1.1 < slower["high"]
    assert slower["coincides"] == ["torch 2.11.0 -> 2.13.0"]
    assert slower["before_started_at"].startswith("2026-03-08")
    assert (breaks["metric"], breaks["old"], breaks["new"], breaks["after_label"]) == ("graph_breaks", 0, 2, "v4")
    assert (broken["kind"], broken["after_label"]) == ("broken", "v12")
    assert broken["reason"] == "it does not compile any more" and broken["cell"].startswith("other bs=8 fancy")


def test_formats(history, tmp_path):
    out = history()
    line = next(line for line in out.splitlines() if "latency_ms" in line)
    assert "slower" in line and "1.1" in line and "open" in line and "coincides with torch 2.11.0 -> 2.13.0" in line
    assert "changes: 3 (3 open)" in out and "\x1b" not in out
    rows = list(csv.DictReader(io.StringIO(history("--format", "csv"))))
    assert [row["word"] for row in rows] == ["broken", "slower", "more"]
    assert float(rows[1]["ratio"]) == pytest.approx(1.1, rel=0.01) and rows[1]["alarms"] == "True"
    assert "slower" in history("--format", "markdown")
    assert history("--out", str(tmp_path / "x" / "h.txt")) == ""
    assert "slower" in (tmp_path / "x" / "h.txt").read_text()


def test_filters(read, db):
    v8 = sweep_labelled(db, "v8")
    both = ["status", "latency_ms"]
    for words, metrics in (
        (("--metric", "latency_ms", "--metric", "speedup"), [*both, "speedup"]),
        (("--metric", "speedup", "--model", "net"), ["speedup"]),
        (("--model", "net"), ["latency_ms", "graph_breaks"]),
        (("--mode", "fancy"), ["status"]),
        (("--mode", "eager"), []),
        (("--since", "v0"), [*both, "graph_breaks"]),
        (("--since", "v8"), both),
        (("--since", v8), both),
        (("--since", "2026-03-09"), both),
        (("--since", "v9"), ["status"]),
        (("--since", "2026-03-10T00:00"), ["status"]),
        (("--since", "last"), []),
        (("--since", "2030-01-01"), []),
    ):
        assert [one["metric"] for one in read(*words)["changes"]] == metrics, words


def test_two_machines_with_the_same_hardware(tmp_path, history, read):
    hosts = ["b" if number > 11 and number % 2 else "a" for number in range(24)]
    levels = [(1.1 if host == "b" else 1.0) * (1 + 0.001 * (number % 3)) for number, host in enumerate(hosts)]
    db = add_latencies(tmp_path / "two.db", levels, hosts)
    (flapping,) = [one for one in read(db=db)["flapping"] if one["metric"] == "latency_ms"]
    assert flapping["coincides"] == ["host a | b"]
    assert "goes with host a | b" in history(db=db)
    for host, sweeps in (("a", 18), ("b", 6)):
        found = read("--host", host, db=db)
        assert (found["flapping"], found["changes"], found["recent"]) == ([], [], [])
        assert f"sweeps: {sweeps}" in found["summary"]
    assert "sweeps: 24" in history("--host", "a", "--host", "b", db=db)
    assert "no sweep with host 'c'; there are 'b', 'a'" in history("--host", "c", code=2, db=db)


def test_little_data(history, tmp_path):
    db = str(tmp_path / "empty.db")
    Store.open(db, mode="write").close()
    for words in ((), ("--format", "json")):
        assert "holds no sweep yet" in history(*words, db=db, code=3)
    assert history("acks", db=db) == "nothing is acknowledged\n"
    with Store.open(db, mode="write") as store:
        add_sweep(store, 0, lambda one: [])
    assert history(db=db) == "no results yet: nothing has a history\n"
    assert "too short to judge" in history(db=fill(tmp_path / "one.db", sweeps=1))


def test_impossible_figures(read, history, db, tmp_path):
    odd = add_latencies(tmp_path / "odd.db", [1.0] * 6 + [math.nan, math.inf, 0.0, -1.0] + [1.5] * 6)
    (change,) = [one for one in read(db=odd)["changes"] if one["metric"] == "latency_ms"]
    assert (change["ratio"], change["low"], change["high"]) == (pytest.approx(1.5),) * 3
    with closing(sqlite3.connect(db)) as raw, raw:  # SQLite keeps text in numeric columns
        raw.execute("UPDATE result SET latency_ms = 'fast', latency_ci_low_ms = x'00' WHERE rowid % 4 = 1")
        raw.execute("UPDATE result SET latency_ci_high_ms = 'slow', graph_breaks = 'none' WHERE rowid % 4 = 2")
    assert "changes" in history()


LABELS = (
    "<script>alert(1)</script>", "two\nlines\r\n\u2028x", "a,b;c|d`e`*f*", "x" * 5000, "größe 型号 🚀",
    "[bold red]x[/]", "\x1b[31mred", "back\u202ewards", "![x](http://evil)",
)  # fmt: skip


@pytest.mark.parametrize("label", LABELS)
def test_hostile_labels(label, history, db):
    with Store.open(db, mode="write") as store, store._writing() as connection:
        connection.execute(sa.update(SweepRow).values(label=label))
    for words in ([], ["--format", "markdown"], ["--all"]):
        out = history(*words)
        rows = [line for line in out.splitlines() if "latency_ms" in line]
        assert len(rows) == 1 and "\x1b" not in out and "\u202e" not in out and "\r" not in out
        assert len(words) < 2 or ("<script" not in out and rows[0].count("|") == 10)
        assert len(rows[0]) < 500
    found = json.loads(history("--format", "json"))["changes"]
    assert found[0]["after_label"] == label
    rows = list(csv.DictReader(io.StringIO(history("--format", "csv"), newline="")))
    assert [row["after_label"] for row in rows] == [label] * 3
    history("ack", found[0]["id"], "--reason", label)
    assert len(history("acks").splitlines()) < 120


# --- acknowledgements ---


def ids(read, *words):
    return {one["word"]: one["id"] for one in read(*words)["changes"]}


def test_an_acknowledged_change_is_omitted_and_taken_back(history, read):
    known = ids(read)
    assert history("ack", known["slower"], "--reason", "first").startswith(f"acknowledged {known['slower']}: slower")
    history("ack", known["slower"], "--reason", "more checks")  # another reason
    assert ids(read) == {word: known[word] for word in ("broken", "more")}
    assert "1 acknowledged and omitted" in history()
    shown = next(one for one in read("--all")["changes"] if one["word"] == "slower")
    assert (shown["acknowledged"], shown["alarms"], shown["id"]) == ("more checks", False, known["slower"])
    listed = history("acks")
    assert listed.count(known["slower"]) == 1 and "more checks" in listed and "first sweep" in listed
    history("ack", known["broken"], "--reason", "known")
    assert history("ack", "--rm", known["slower"]).startswith(f"taken back {known['slower']}")
    assert ids(read) == {word: known[word] for word in ("slower", "more")}
    assert "no ids start with" in history("ack", "--rm", known["slower"], code=2)


def test_patterns(history, read):
    for words, left in (
        (("model=net",), {"broken"}),
        (("model=n*", "metric=latency*"), {"broken", "more"}),
        (("mode=fancy",), {"slower", "more"}),
    ):
        history("ack", *words, "--reason", "known")
        assert set(ids(read)) == left, words
        known = [line.split()[0] for line in history("acks").splitlines()[1:]]
        history("ack", *(word for id in known for word in ("--rm", id)))
    assert set(ids(read)) == {"broken", "slower", "more"}


def test_an_acknowledgement_whose_sweep_is_gone_holds_for_nothing(history, read, db):
    known = ids(read)
    history("ack", known["slower"], "--reason", "known")
    sweep = sweep_labelled(db, "v8")
    with closing(sqlite3.connect(db)) as raw, raw:
        for table in ("result", "trial", "sweep_cell"):
            raw.execute(f"DELETE FROM {table} WHERE sweep_id = ?", [sweep])
        raw.execute("DELETE FROM sweep WHERE id = ?", [sweep])
    (change,) = [one for one in read()["changes"] if one["word"] == "slower"]
    assert change["alarms"] and change["after_label"] == "v9"
    assert "no ids start with" in history("ack", known["slower"], "--reason", "x", code=2)
    assert "taken back" in history("ack", "--rm", known["slower"])


def test_what_is_refused(db, capsys):
    for words, said in (
        ("ack", "name changes by their ids"),
        ("ack 3f9a2c", "say why"),
        ("ack ffffffffffff --reason x", "no ids start with"),
        ("ack model=nothing --reason x", "no change that is not acknowledged fits model=nothing"),
        ("ack x --rm 3f9a2c", "needs no change and no reason"),
        ("ack modle=net --reason x", "modle= is no pattern; allowed are model"),
        ("--since yesterday", "is no date"),
        ("--metric flops", "has no history"),
        ("--model nothing", "there are models net, other"),
        ("--config nothing", "no configuration 'nothing'"),
        ("nonsense", "invalid choice"),
        (f"--db {db}.none", "no database at"),
    ):
        assert cli.run(["history", "--db", db, *words.split()]) in (2, 3), words
        assert said in capsys.readouterr().err, words
    assert cli.run(["history", "--db", db, "acks"]) == 0, "the database before the word"
    assert capsys.readouterr().out == "nothing is acknowledged\n"

"""`effbench history` of a database that holds pull requests and re-runs beside the main line."""

from __future__ import annotations

import json

import pytest
from made_sweeps import a_cell, environment, spread

from effbench.report.data import read as read_report
from effbench.store import Store

CELL = a_cell()


@pytest.fixture
def sweep(made):
    seeds = iter(range(1000))

    def call(level, name=None, label=None, **more):
        figures = {"latency_ms": spread(level, 0.002, seed=next(seeds))}
        return made.sweep({CELL: figures}, name=name, label=label, **more)

    return call


@pytest.fixture
def history(effbench):
    def call(*words):
        done = effbench("history", *words, "--format", "json")
        assert done.code == 0, done.err
        return json.loads(done.out)

    return call


def latencies(rows):
    return [(one["kind"], one["after_label"]) for one in rows if one["metric"] == "latency_ms"]


def test_re_runs_make_no_history(sweep, history):
    """One sweep of a pull request and its two re-runs are one odd sweep."""
    for number in range(8):
        sweep(1.0, label=f"main{number}")
    odd = sweep(1.1, label="pr")
    for process in (1, 2):
        side = environment(flags={"folder": f"/cache/revisions/{process}/abc"})
        again = sweep(1.1, f"confirm:{odd}", "pr")
        sweep(1.0, f"confirm:{odd}", "pr", into=again, env=side)
    found = history()
    assert found["changes"] == found["new"] == found["dead"] == []
    assert latencies(found["recent"]) == [("recent", "pr")]
    assert "cells: 1 · sweeps: 9" in found["summary"]


def test_a_line(sweep, history, effbench):
    """Main and pull requests in turns; then main is slower."""
    for number in range(10):
        sweep(1.0 if number < 6 else 1.3, "main", f"m{number}")
        sweep(1.1, f"pr-{number}", f"p{number}")
        sweep(1.1 * (1 + number % 2), None, f"n{number}")
    found = history("--name", "main")
    assert "sweeps: 10" in found["summary"] and "sweeps: 10" in history("--name", "")["summary"]
    assert "sweeps: 30" in history()["summary"]
    (change,) = [one for one in found["changes"] if one["metric"] == "latency_ms"]
    assert (change["before_label"], change["after_label"]) == ("m5", "m6")
    assert change["ratio"] == pytest.approx(1.3, rel=0.01)
    assert latencies(history("--name", "main", "--since", "p6")["changes"]) == []
    assert latencies(history("--name", "main", "--since", "p5")["changes"]) == [("change", "m6")]
    done = effbench("history", "--name", "mian")
    assert done.code == 2 and "no sweep with name 'mian'; there are '', 'pr-9', 'main'" in done.err
    said = effbench("history", "--name", "main").out
    assert f'effbench history ack {change["id"]} --name main --reason "why"' in said
    done = effbench("history", "ack", change["id"], "--name", "main", "--reason", "why")
    assert done.code == 0 and f"acknowledged {change['id']}" in done.out
    assert latencies(history("--name", "main")["changes"]) == []
    assert effbench("history", "--name", "main", "ack", "--rm", change["id"]).code == 0


def test_the_site_leaves_re_runs_out_of_history_alone(made, sweep):
    sweeps = [sweep(1.0) for _ in range(3)]
    other = environment(torch_version="2.11.0")
    again = sweep(1.3, f"confirm:{sweeps[-1]}", env=other)
    with Store.open(made.path) as store:
        past = read_report(store, "made").history
        shown = read_report(store, "made", [again])
    (track,) = past.tracks
    assert [row.sweep_id for row in track.rows] == sweeps
    # an environment still names every sweep that it was used in
    assert past.sweeps_of_environment == {environment().id: sweeps, other.id: [again]}
    # and of a re-run that is looked at it is still known which sweep came before
    assert shown.device_sweeps[0].changes.previous["id"] == sweeps[-1]

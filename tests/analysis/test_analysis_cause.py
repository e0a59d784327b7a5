"""The cause of a slower or faster cell: which rows get one, and that it changes nothing else."""

import json
from dataclasses import replace
from unittest.mock import Mock

import pytest
from made_sweeps import DEFAULT, EAGER, FAST, GRAPH, SLOW
from test_analysis_explain_kernels import COPY, GELU, SMALL

import effbench as effbench_api
from effbench.analysis import cause
from effbench.analysis.explain import Explanation
from effbench.store.store import Store

BEFORE = [SMALL, GELU, SMALL]
#: Longer than what else differs, which is the host's.
LONG_COPY = replace(COPY, ms=0.08, added_ms=0.08)
AFTER = [SMALL, LONG_COPY, GELU, SMALL]
NAMED = "1 copy operation is new (Memcpy DtoD): +0.080 of +0.100 ms"
NAME = "mlp bs=8 eager bfloat16"


@pytest.fixture
def sweeps(made):
    """Records two sweeps of cells with their figures on each side; every trial is traced."""

    def call(before, after, traced=(BEFORE, AFTER)):
        ids = [made.sweep(cells) for cells in (before, after)]
        for sweep, kernels in zip(ids, traced, strict=True):
            for cell in before:
                if kernels:
                    made.trace(sweep, cell, kernels)
        return ids

    return call


@pytest.fixture
def changes(sweeps, effbench):
    """Compares two such sweeps, and returns the rows."""

    def call(*sides, **more):
        done = effbench("compare", *sweeps(*sides, **more), "--format", "json")
        assert (done.code, done.err) == (0, "")
        return json.loads(done.out)["changes"]

    return call


def causes(changes):
    return {(row["cell"], row["metric"]): row["cause"] for row in changes if row["cause"]}


def test_a_cell_has_one_cause(changes):
    """In the row of its latency, though its period is longer, too."""
    slower = SLOW | {"period_ms": SLOW["latency_ms"]}
    rows = changes({EAGER: FAST | {"period_ms": FAST["latency_ms"]}}, {EAGER: slower})
    assert [row["metric"] for row in rows if row["verdict"] == "slower"] == [
        "latency_ms",
        "period_ms",
    ]
    assert causes(rows) == {(NAME, "latency_ms"): NAMED}


def test_a_faster_cell_has_a_cause(changes):
    faster = "1 copy operation is gone (Memcpy DtoD): -0.080 of -0.100 ms"
    rows = changes({EAGER: SLOW}, {EAGER: FAST}, traced=(AFTER, BEFORE))
    assert causes(rows) == {(NAME, "latency_ms"): faster}


def test_a_longer_period_alone_has_no_cause_in_the_latency(changes):
    figures = [FAST | {"period_ms": side["latency_ms"]} for side in (FAST, SLOW)]
    rows = changes({EAGER: figures[0]}, {EAGER: figures[1]})
    assert [row["metric"] for row in rows if row["verdict"] == "slower"] == ["period_ms"]
    assert not causes(rows)


def test_traces_of_other_cells_are_not_read(changes, monkeypatch):
    traces = Mock(wraps=Store.traces)
    monkeypatch.setattr(Store, "traces", lambda *words: traces(*words))
    rows = changes(
        {EAGER: FAST, DEFAULT: FAST, GRAPH: FAST},
        {EAGER: SLOW, DEFAULT: FAST, GRAPH: {"status": "error", "reason": "boom"}},
    )
    assert len(causes(rows)) == 1
    assert [call.args[2] for call in traces.call_args_list] == [EAGER.key, EAGER.key]


def test_the_most_important_cells_have_causes(changes, monkeypatch):
    monkeypatch.setattr(cause, "MOST_CELLS", 1)
    much_slower = {"latency_ms": [2 * value for value in SLOW["latency_ms"]]}
    rows = changes({EAGER: FAST, DEFAULT: FAST}, {EAGER: SLOW, DEFAULT: much_slower})
    assert [name for name, _ in causes(rows)] == ["mlp bs=8 default bfloat16"]


@pytest.mark.parametrize("traced", [(None, AFTER), (BEFORE, None), (None, None)])
def test_without_traces_there_is_no_cause(changes, traced):
    rows = changes({EAGER: FAST}, {EAGER: SLOW}, traced=traced)
    assert rows[0]["verdict"] == "slower"
    assert not causes(rows)


def test_damaged_traces_have_no_cause(sweeps, effbench, made):
    ids = sweeps({EAGER: FAST}, {EAGER: SLOW})
    made.sql("UPDATE trace SET data = x'00'")
    done = effbench("compare", *ids, "--format", "json")
    assert (done.code, done.err) == (0, "")
    assert not causes(json.loads(done.out)["changes"])


def test_an_error_of_an_explanation_changes_nothing(changes, monkeypatch, caplog):
    monkeypatch.setattr(Explanation, "of", Mock(side_effect=ZeroDivisionError))
    rows = changes({EAGER: FAST}, {EAGER: SLOW})
    assert (rows[0]["verdict"], rows[0]["cause"]) == ("slower", None)
    assert "no cause" in caplog.text


def test_a_check_names_the_cause(sweeps, effbench):
    """In the table, in Markdown and in JUnit; the verdict and the exit code are the same."""
    first, _ = sweeps({EAGER: FAST, DEFAULT: FAST}, {EAGER: SLOW, DEFAULT: FAST})
    assert effbench("baseline", "set", "main", first).code == 0
    for form, text in {
        "table": f"\n{NAME}: {NAMED}\n",
        "markdown": f" | {NAMED} |\n",
        "junit": f': {NAMED}" />',
    }.items():
        done = effbench("check", "--baseline", "main", "--format", form)
        assert done.code == 1
        assert done.out.count(NAMED) == 1
        assert text in done.out


def test_the_frame_of_a_comparison_has_causes(sweeps):
    frame = effbench_api.compare(*sweeps({EAGER: FAST}, {EAGER: SLOW}))
    assert list(frame["cause"].dropna()) == [NAMED]

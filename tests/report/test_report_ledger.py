"""The ledger of claims, and figures and tables of experiments as text."""

from __future__ import annotations

import datetime as dt
import json
import math

import pytest

from effbench.analysis.claims import Claim, Judgement, Verdict
from effbench.analysis.estimate import ABSENT, UNKNOWN, Estimate, Vector
from effbench.analysis.expression import ExpressionError
from effbench.analysis.rows import Rows
from effbench.report.ledger import HEADINGS, entries, estimate_text, judged_figure, natural, pivot, render, row_of

AT = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "value, unit, text",
    [
        (Estimate.exact(3.0), "", "3"),
        (Estimate.exact(3.0), "calls", "3 calls"),
        (Estimate(1.4321, 1.4, 1.47), "×", "1.43× [1.40, 1.47]"),
        (Estimate(0.4567, 0.4, 0.5), "%", "45.7% [40, 50]"),
        (Estimate(2.5, 0.0, math.inf), "ms", "2.50 ms"),
        (Estimate.exact(math.inf), "", "inf"),
        (UNKNOWN, "×", "not defined"),
        (Estimate.exact(0.0), "ms", "0 ms"),
        (Estimate.exact(0.00001234), "ms", "1.23e-05 ms"),
        (None, "ms", "—"),
        (ABSENT, "ms", "—"),
        (True, "", "true"),
        ("RuntimeError", "", "RuntimeError"),
        (Vector((Estimate.exact(1.0), ABSENT, False)), "", "1, —, false"),
        ([Estimate.exact(5.0), None], "", "5, —"),
    ],
)
def test_figures_for_a_person(value, unit, text):
    assert estimate_text(value, unit) == text


def test_claims_in_their_natural_order():
    assert sorted(["P10", "S1", "P2", "mine", "O3", "P1"], key=natural) == ["O3", "P1", "P2", "P10", "S1", "mine"]


CLAIMS = [
    ("modes", Claim("P10", "later")),
    ("modes", Claim("P2", "a | b", published="2.27x on an A100")),
    ("sglang", Claim("S13", "code", not_measurable="it is about code")),
]


def judged(claim="P2", experiment="modes", gpu="H200", verdict="confirmed", **measured):
    return {
        "claim": claim, "experiment": experiment, "gpu_name": gpu, "cpu_name": "EPYC", "torch_version": "2.13.0",
        "verdict": verdict, "reason": "first\nsecond", "measured": measured, "judged_at": AT,
    }  # fmt: skip


FIGURE = {"value": 1.4321, "low": 1.4, "high": 1.47, "unit": "×"}


@pytest.fixture
def found():
    rows = [judged(**FIGURE), judged(gpu=None, verdict="refuted"), judged(experiment="other"), judged("gone")]
    return entries(CLAIMS, rows)


def test_a_line_for_each_claim_and_machine(found):
    assert [(one.claim.id, one.verdict, one.machine) for one in found] == [
        ("P2", "confirmed", "H200, torch 2.13.0"),
        ("P2", "refuted", "EPYC, torch 2.13.0"),
        ("P10", "not measured yet", None),
        ("S13", "not measurable here", None),
    ]
    assert found[0].figure == "1.43× [1.40, 1.47]"
    assert found[1].figure == "—"
    assert found[2].reason == "effbench reproduce modes"
    assert found[3].reason == "it is about code"
    assert len(row_of(found[0])) == len(HEADINGS)


def test_markdown(found):
    lines = render(found, "markdown").splitlines()
    assert lines[0] == "| claim | statement | verdict | measured | why | on |"
    assert lines[2] == "| P2 | a \\| b | confirmed | 1.43× [1.40, 1.47] | first second | H200, torch 2.13.0 |"
    assert lines[-1] == "- P2: 2.27x on an A100"
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(found)
    assert {line.replace("\\|", "").count("|") for line in table} == {7}


def test_json(found):
    rows = json.loads(render(found, "json"))
    assert rows[0] == {
        "claim": "P2", "statement": "a | b", "experiment": "modes", "verdict": "confirmed", "reason": "first\nsecond",
        "machine": "H200, torch 2.13.0", "judged_at": AT.isoformat(), "measured": FIGURE,
        "published": "2.27x on an A100",
    }  # fmt: skip
    assert rows[2]["judged_at"] is None


def test_an_empty_ledger():
    assert json.loads(render([], "json")) == []
    assert len(render([], "markdown").splitlines()) == 2


def test_the_figure_of_a_judgement():
    assert judged_figure(Judgement("x", Verdict.CONFIRMED, "", Estimate.exact(2.0), "ms")) == "2 ms"
    assert judged_figure(Judgement("x", Verdict.NOT_MEASURED, "")) == "—"


def row(mode, bs, kernels, status="ok", width=16):
    params = {"model": {"module": {"width": width}}, "mode": {"name": mode}, "bs": bs}
    return {"model": "mlp", "mode": mode, "bs": bs, "kernels": kernels, "status": status, "params": params}


class TestPivot:
    rows = Rows([row("eager", 1, 12), row("graph", 1, 3), row("eager", 8, 14), row("graph", 8, None, "oom")])

    def test_statuses_stand_where_figures_are_missing(self):
        made = pivot("Kernels", "kernels", "", ("model", "bs"), "mode", self.rows)
        assert made.headings == ("model", "bs", "eager", "graph")
        assert made.rows == [("mlp", "1", "12", "3"), ("mlp", "8", "14", "oom")]
        assert made.labels == 2

    def test_expressions_and_other_columns(self):
        made = pivot("x", "kernels / 2", "calls", ("mode",), "bs", self.rows)
        assert made.headings == ("mode", "1", "8")
        assert made.rows == [("eager", "6 calls", "7 calls"), ("graph", "1.50 calls", "oom")]

    def test_gaps_and_several_values(self):
        rows = Rows([row("eager", 1, 12), row("eager", 1, 13, width=32), row("graph", 8, 2)])
        assert pivot("x", "kernels", "", ("bs",), "mode", rows).rows == [("1", "12, 13", "—"), ("8", "—", "2")]

    def test_one_figure_for_all(self):
        assert pivot("x", "max(kernels)", "", ("bs",), "mode", self.rows).rows[0] == ("1", "14", "14")

    def test_nothing_measured(self):
        made = pivot("x", "kernels", "", ("bs",), "mode", Rows([]))
        assert (made.headings, made.rows) == (("bs", "mode"), [])
        assert pivot("x", "max(kernels[bs == 99])", "", ("bs",), "mode", self.rows).rows[0] == ("1", "—", "—")

    def test_a_mistake(self):
        with pytest.raises(ExpressionError, match="nearest: kernels"):
            pivot("x", "kernel", "", ("bs",), "mode", self.rows)

"""Published claims, figures and tables of experiments as text."""

import datetime as dt
import json
import math

import pytest

from effbench.experiments import Claim, Pivot
from effbench.experiments.figures import ClaimError, Figure, as_figure, missing
from effbench.experiments.frames import frame_of
from effbench.report.claims import claims_table, entries, pivot_table, value_text

AT = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (as_figure(3), "calls", "3 calls"),
        (as_figure(1), "warm-ups", "1 warm-up"),
        (as_figure(1), "s", "1 s"),
        (Figure(1.4321, 1.4, 1.47), "×", "1.43× [1.40, 1.47]"),
        (Figure(0.4567, 0.4, 0.5), "%", "45.7% [40, 50]"),
        (Figure(2.5, 0.0, math.inf), "ms", "2.50 ms"),
        (as_figure(math.inf), "", "inf"),
        (0.00001234, "ms", "1.23e-05 ms"),
        (math.nan, "ms", "—"),
        (missing("no CUDA"), "ms", "—"),
        (True, "", "true"),
        ([as_figure(5), None], "", "5, —"),
    ],
)
def test_values_for_a_person(value, unit, text):
    assert value_text(value, unit) == text


CLAIMS = [
    ("modes", Claim("P10", "later")),
    ("modes", Claim("P2", "a | b", published="2.27x on an A100")),
    ("sglang", Claim("S13", "code", not_measurable="it is about code")),
]
FIGURE = {"value": 1.4321, "low": 1.4, "high": 1.47, "unit": "×"}


def judged(claim="P2", experiment="modes", gpu="H200", verdict="confirmed", **measured):
    return {
        "claim": claim,
        "experiment": experiment,
        "gpu_name": gpu,
        "cpu_name": "EPYC",
        "torch_version": "2.13.0",
        "verdict": verdict,
        "reason": "first\nsecond",
        "measured": measured,
        "judged_at": AT,
    }


def test_a_line_for_each_claim_and_machine():
    rows = [
        judged(**FIGURE),
        judged(gpu=None, verdict="refuted", overrides=["bs=4"]),
        judged(experiment="other"),
    ]
    found = entries(CLAIMS, [*rows, judged("gone")])
    assert [(one["claim"], one["verdict"], one["machine"]) for one in found] == [
        ("P2", "confirmed", "H200, torch 2.13.0"),
        ("P2", "refuted", "EPYC, torch 2.13.0"),
        ("P10", "not measured yet", None),
        ("S13", "not measurable here", None),
    ]
    reasons = ["first\nsecond; measured with bs=4", "effbench reproduce modes", "it is about code"]
    assert [one["reason"] for one in found[1:]] == reasons
    assert found[0]["measured"] == FIGURE and found[0]["published"] == "2.27x on an A100"
    table = claims_table(found)
    assert [row["measured"].text for row in table.rows[:2]] == ["1.43× [1.40, 1.47]", "—"]
    assert json.loads(table.render("json"))[2]["judged_at"] is None


def row(mode, bs, kernels, status="ok", width=16):
    params = {"model": {"module": {"width": width}}, "mode": {"name": mode}, "bs": bs}
    facts = {
        "sweep_id": "s",
        "cell_key": f"{mode}{bs}{width}",
        "model": "mlp",
        "status": status,
        "reason": None,
        "params": params,
    }
    return {**facts, "mode": mode, "bs": bs, "kernels": kernels}


def drawn(pivot, rows):
    frames = (frame_of(rows, {}, with_marks) for with_marks in (False, True))
    return pivot_table(pivot, *frames).render("csv").splitlines()


def test_tables_of_an_experiment():
    rows = [row("eager", 1, 12), row("graph", 1, 3), row("eager", 8, 14)]
    rows.append(row("graph", 8, None, "oom"))
    expected = ["model,bs,eager ,graph ", "mlp,1,12,3", "mlp,8,14,oom"]
    assert drawn(Pivot("x", "kernels"), rows) == expected
    pivot = Pivot("x", lambda rows: rows.kernels / 2, rows=["mode"], columns="bs", unit="calls")
    assert drawn(pivot, rows) == ["mode,1 ,8 ", "eager,6 calls,7 calls", "graph,1.50 calls,oom"]
    gaps = [row("eager", 1, 12), row("eager", 1, 13, width=32), row("graph", 8, 2)]
    expected = ["bs,eager ,graph ", '1,"12, 13",—', "8,—,2"]
    assert drawn(Pivot("x", "kernels", rows=["bs"]), gaps) == expected


@pytest.mark.parametrize(
    "pivot",
    [
        Pivot("x", "kernles"),
        Pivot("x", "kernels", rows=["kernles"]),
        Pivot("x", "bs", columns="kernles"),
    ],
)
def test_tables_of_unknown_columns(pivot):
    with pytest.raises(ClaimError, match="no column 'kernles'; nearest: kernels"):
        drawn(pivot, [row("eager", 1, 12)])


def test_tables_of_an_experiment_show_marked_figures():
    marked = row("graph", 1, 3) | {"marked": True, "disturbance": "host busy"}
    rows = [row("eager", 1, 12), marked, row("eager", 8, 14), row("graph", 8, None, "oom")]
    expected = ["model,bs,eager ,graph ", "mlp,1,12,~3", "mlp,8,14,oom"]
    assert drawn(Pivot("x", "kernels"), rows) == expected
    pivot = Pivot("x", lambda rows: rows.kernels / 2, unit="calls")
    assert drawn(pivot, rows)[1] == "mlp,1,6 calls,~1.50 calls"

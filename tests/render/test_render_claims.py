"""Published claims, figures and tables of experiments as text."""

import datetime as dt
import json
import math

import pytest

from effbench.claims.figures import Figure, as_figure, missing
from effbench.render.claims import claims_table, entries, value_text

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
        (Figure(0.266, -3.86e161, 1.0), "%", "26.6%"),
        (Figure(-2.0, -900.0, 900.0), "ms", "-2 ms [-900, 900]"),
        (Figure(0.0, -5.0, 5.0), "ms", "0 ms [-5, 5]"),
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


FIGURE = {"value": 1.4321, "low": 1.4, "high": 1.47, "unit": "×"}


def judged(claim="P2", experiment="compilation-gains", gpu="H200", verdict="confirmed", **measured):
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
        judged("Z1", "mine", statement="a | b", published="2.27x on an A100"),
        judged("Z2", "mine"),
    ]
    own = [record for record in entries(rows) if record["claim"] in ("P2", "S13", "Z1", "Z2")]
    here, cpu, reference, mine, old = own
    assert (here["verdict"], here["machine"]) == ("confirmed", "H200, torch 2.13.0")
    assert here["measured"] == FIGURE
    assert (cpu["verdict"], cpu["machine"]) == ("refuted", "EPYC, torch 2.13.0")
    assert cpu["reason"] == "first\nsecond; measured with bs=4"
    assert reference["verdict"] == "not measurable here"
    assert reference["machine"] == "NVIDIA H200, torch 2.11.0+cu130 (reference)"
    assert (mine["statement"], mine["published"]) == ("a | b", "2.27x on an A100")
    assert "your own experiment" in old["statement"], "an earlier effbench did not keep it"
    table = claims_table(own)
    assert table.rows[0]["measured"].text == "1.43× [1.40, 1.47]"
    assert json.loads(table.render("json"))[0]["judged_at"] == "2026-11-21T10:00:00+00:00"

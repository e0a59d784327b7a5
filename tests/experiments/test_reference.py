"""All claims, judged again from the rows and facts of a run on an H200: the same verdicts, figures and intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from effbench.experiments.definition import load_all
from effbench.experiments.figures import Facts, Missing
from effbench.experiments.frames import frame_of
from effbench.experiments.judge import as_json, bounds, judge

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
#: Not in the file of rows: what the modes of P15's cells said.
OF_MODES = {"share of padded rows with SGLang's sizes", "seconds of capturing, one graph for each size"}


@pytest.fixture(scope="module")
def shipped():
    from effbench.experiments.definition import load

    return [load(one.path) for one in load_all()]


def chosen(experiment, sweeps, rows):
    """The rows of the experiment's sweeps, in the order of its models; some were reused from other experiments."""
    axes = []
    for words in experiment.sweeps.values():
        pairs = (word.partition("=")[::2] for word in words)
        axes.append({key: value.split(",") for key, value in pairs if key in ("model", "bs", "mode")})
    models = [model for axis in axes for model in axis["model"]]
    own = [
        row
        for row in rows
        if row["sweep_id"] in sweeps
        and any(all(str(row[key]) in values for key, values in axis.items()) for axis in axes)
    ]
    return sorted(own, key=lambda row: models.index(row["model"]))


def inputs(experiment, claim, measured, rows):
    found = {}
    for name in claim.inputs:
        if name in experiment.checks:
            kept = measured["evidence"][name]
            ran = kept["status"] == "ok"
            found[name] = Facts(kept["facts"]) if ran else Missing(f"{kept['status']}: {kept['reason']}")
        else:
            found[name] = frame_of(chosen(experiment, measured["sweeps"], rows), experiment.swept)
    return found


def same(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return found is expected if isinstance(expected, bool) else found == expected


def test_all_claims_have_their_verdicts_figures_and_intervals(shipped):
    rows = [json.loads(line) for line in (REFERENCE / "claims-rows-h200.jsonl").read_text().splitlines()]
    expected = {row["claim"]: row for row in json.loads((REFERENCE / "claims-h200.json").read_text())}
    judged = 0
    for experiment in shipped:
        for claim in experiment.claims:
            row = expected[claim.id]
            measured = row["measured"]
            found = judge(claim, inputs(experiment, claim, measured, rows))
            parts = [{"label": p.label, "holds": p.holds.holds, **bounds(p.value)} for p in found.parts if p.label]
            also = as_json(dict(found.also))
            assert (str(found.verdict), found.reason) == (row["verdict"], row["reason"]), claim.id
            assert (claim.text, claim.published, experiment.name) == (
                row["statement"], row["published"], row["experiment"]
            )  # fmt: skip
            if found.value is not None:
                assert same(bounds(found.value), {key: measured[key] for key in ("value", "low", "high")}), claim.id
            assert (found.value is None) == (measured.get("value") is None), claim.id
            assert same(parts, measured.get("parts", [])), claim.id
            kept = {key: value for key, value in measured.get("also", {}).items() if key not in OF_MODES}
            assert same({key: value for key, value in also.items() if key not in OF_MODES}, kept), claim.id
            assert claim.unit == measured.get("unit", ""), claim.id
            judged += 1
    assert judged == len(expected) == 44


def test_questions_and_costs(shipped):
    for experiment, outline in zip(shipped, load_all(), strict=True):
        assert experiment.question.endswith("?") and 0 < experiment.gpu_seconds <= 3600
        assert [claim.id for claim in outline.claims] == [claim.id for claim in experiment.claims]

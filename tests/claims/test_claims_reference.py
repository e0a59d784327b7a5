"""All claims, judged again from the rows and facts of a run on an H200: the same verdicts, figures
and intervals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from made_sweeps import a_result

from effbench.claims.definition import find, shipped_verdicts
from effbench.claims.run import Reproduction
from effbench.core.cell import Result
from effbench.core.metrics import INTERVALS

ROWS = Path(__file__).parents[2] / "results" / "reference" / "claims-rows-h200.jsonl"
FIELDS = {field.name for field in dataclasses.fields(Result)}


def result_of_line(line):
    """A result of an earlier version, which had other columns; figures without an interval were
    exact."""
    facts = {name: value for name, value in json.loads(line).items() if name in FIELDS}
    for name, bounds in INTERVALS.items():
        if name in facts and not facts.keys() & set(bounds):
            facts |= dict.fromkeys(bounds, facts[name])
    return a_result(**facts)


def chosen(experiment, sweeps, results):
    """The results of the experiment's sweeps, in the order of its models; some are those of
    other experiments."""
    axes = []
    for words in experiment.sweeps.values():
        values = dict(word.partition("=")[::2] for word in words)
        values["model"] = values.get("model.arch", values["model"])  # the name of its rows
        axes.append(
            {key: values[key].split(",") for key in ("model", "bs", "mode") if key in values}
        )
    models = [model for axis in axes for model in axis["model"]]
    own = []
    for result in results:
        is_meant = any(
            all(str(getattr(result, key)) in values for key, values in axis.items())
            for axis in axes
        )
        if result.sweep_id in sweeps and is_meant:
            own.append(result)
    return sorted(own, key=lambda result: models.index(result.model))


def rounded(value):
    """A JSON value whose numbers have ten significant digits."""
    return json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.9e}"))


@pytest.fixture(scope="module")
def results():
    return [result_of_line(line) for line in ROWS.read_text().splitlines()]


EXPERIMENTS = find(["all"])
EXPECTED = {row["claim"]: row for row in shipped_verdicts()}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_claim_has_its_verdict_figures_and_intervals(name, results):
    row = EXPECTED[name]
    (experiment,) = find([name])
    run = Reproduction(
        experiment,
        server=None,
        probed=SimpleNamespace(gpus=["an H200"] * 2),
        db="",
        overrides={},
        quiet=True,
    )
    (claim,) = [claim for claim in experiment.claims if claim.id == name]
    run.checks = row["measured"].get("evidence", {})
    of_claim = chosen(experiment, row["measured"].get("sweeps", ()), results)
    sweeps = [sweep for sweep in claim.inputs if sweep not in run.checks]
    for sweep in sweeps:
        title = f"{experiment.name}/{sweep}"
        named = [result for result in of_claim if result.sweep_name == title]
        run.results[sweep] = named if len(sweeps) > 1 else of_claim
    found = run.verdict_row(run.judge(claim))
    assert not run.mistakes
    for key in ("verdict", "reason", "experiment"):
        assert found[key] == row[key]
    assert claim.text == row["statement"]
    assert claim.published == row["published"]
    for key in ("value", "low", "high", "unit", "parts"):
        assert rounded(found["measured"].get(key)) == rounded(row["measured"].get(key)), key
    also, expected = (figures["measured"].get("also", {}) for figures in (found, row))
    assert rounded(also) == rounded(expected)


def test_every_claim_has_a_shipped_verdict():
    assert all(experiment.question.endswith("?") for experiment in EXPERIMENTS)
    claims = [claim.id for experiment in EXPERIMENTS for claim in experiment.claims]
    assert sorted(claims) == sorted(EXPECTED)

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
    """The results of the experiment's sweeps, in the order of its models; some were reused from
    other experiments."""
    axes = []
    for words in experiment.sweeps.values():
        pairs = (word.partition("=")[::2] for word in words)
        axes.append(
            {key: value.split(",") for key, value in pairs if key in ("model", "bs", "mode")}
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


def same(found, expected):
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    return found is expected if isinstance(expected, bool) else found == expected


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
        probed=SimpleNamespace(gpus=["an H200"]),
        db="",
    )
    (claim,) = [claim for claim in run.experiment.claims if claim.id == name]
    run.checks = row["measured"].get("evidence", {})
    of_claim = chosen(run.experiment, row["measured"].get("sweeps", ()), results)
    run.results = dict.fromkeys(run.experiment.sweeps, of_claim)
    found = run.verdict_row(run.judge(claim))
    assert not run.mistakes
    assert found["verdict"] == row["verdict"]
    assert found["reason"] == row["reason"]
    statement = (claim.text, claim.published, run.experiment.name)
    assert statement == (row["statement"], row["published"], row["experiment"])
    for key in ("value", "low", "high", "unit", "parts"):
        assert same(found["measured"].get(key), row["measured"].get(key)), key
    assert same(*(figures["measured"].get("also", {}) for figures in (found, row)))


def test_every_claim_has_a_shipped_verdict():
    assert all(experiment.question.endswith("?") for experiment in EXPERIMENTS)
    claims = [claim.id for experiment in EXPERIMENTS for claim in experiment.claims]
    assert sorted(claims) == sorted(EXPECTED)

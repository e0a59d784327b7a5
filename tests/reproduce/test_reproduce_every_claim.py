"""Every shipped claim about rows, over rows that its sweeps would give: no condition asks for what does not exist."""

from __future__ import annotations

import math
import random
from dataclasses import asdict

import pytest

from effbench.analysis.claims import Verdict, judge, speaks_of_rows, subjects
from effbench.cell import Status
from effbench.launcher import cells as plan
from effbench.launcher.launch import hydra_sweep
from effbench.message import EvidenceRequest
from effbench.reproduce.experiment import load_all
from effbench.reproduce.run import Reproduction, Swept, command_of, spoken_of
from effbench.store.schema import RESULT_COLUMNS
from effbench.sweep.evidence import EvidenceOutcome

SWEPT = [one for one in load_all() if one.sweeps]
FACTS = ("padding_waste", "capture_s", "fallbacks")
SECONDS = {"first_s": 3.0, "second_s": 2.0, "later_s": [0.0]}
#: What evidence says that a claim about rows speaks of as well.
EVIDENCE = {"recompiling": {"batches": [2, 4, 8], "layers": 16, "dynamic": SECONDS, "static": SECONDS}}


def cells_of(experiment, name, words, folder):
    """The cells of one of its sweeps, as a machine with a GPU would plan them; nothing runs."""
    found = []

    def conductor(configs, *_args, **_kwargs):
        parts, settings = plan.split(configs)
        for part in parts:
            if part["mode"]["name"] == settings.baseline_mode:  # a worker's probe takes others' settings out of it
                part["mode"] = {key: part["mode"][key] for key in ("name", "_target_")}
        found.extend(plan.resolve([part], True)[0] for part in parts)

    hydra_sweep(command_of(experiment, name, words, [], str(folder / "none.db")), quiet=True, conductor=conductor)
    return {cell.key: cell for cell in found}.values()


def row_of(cell, sweep_id, numbers):
    row = dict.fromkeys(RESULT_COLUMNS)
    for column in RESULT_COLUMNS:
        if column.endswith(("_ms", "_s", "_bytes", "_fraction", "_ratio", "_calls", "_mj")) or column == "kernels":
            row[column] = numbers.uniform(1, 9)
    for column in ("latency", "period"):
        middle = row[f"{column}_ms"]
        row |= {f"{column}_ci_low_ms": middle * 0.99, f"{column}_ci_high_ms": middle * 1.01}
    speedup = math.exp(numbers.uniform(-0.5, 1))
    row |= {"speedup": speedup, "speedup_ci_low": speedup * 0.99, "speedup_ci_high": speedup * 1.01}
    known = asdict(cell) | {"mode": cell.mode_name, "model": cell.params()["model"]["name"]}
    row |= {name: known[name] for name in ("model", "bs", "mode", "dtype", "phase", "device") if name in known}
    return row | {"sweep_id": sweep_id, "status": "ok", "cell_key": cell.key, "params": cell.params(), "trials": 3}


@pytest.fixture(scope="module", params=SWEPT, ids=lambda one: one.name)
def reproduction(request, tmp_path_factory):
    experiment, numbers = request.param, random.Random(3)
    done = Reproduction(experiment, "e" * 16)
    for name, words in experiment.sweeps.items():
        cells = cells_of(experiment, name, words, tmp_path_factory.mktemp("plan"))
        rows = [row_of(cell, f"sweep-{name}", numbers) for cell in cells]
        facts = {row["cell_key"]: {fact: numbers.random() for fact in FACTS} for row in rows}
        done.swept[name] = Swept(rows, facts)
    for name, piece in experiment.evidence.items():
        asked = EvidenceRequest(piece.target, dict(piece.settings))
        done.evidence[name] = EvidenceOutcome(asked, Status.OK, None, EVIDENCE[name], 1.0)
    return done


@pytest.mark.slow
def test_every_claim_about_rows_is_judged(reproduction):
    claims = [claim for claim in reproduction.experiment.claims if speaks_of_rows(subjects(claim))]
    assert claims
    for claim in claims:
        found = judge(claim, reproduction.scope(claim.sweep))
        assert found.verdict not in (Verdict.NOT_MEASURED, Verdict.NOT_MEASURABLE), (claim.id, found.reason)
        absent = [name for name, value in found.also.items() if value is None or "ABSENT" in repr(value)]
        assert not absent, (claim.id, absent)


def test_no_evidence_is_gathered_that_no_claim_speaks_of():
    for experiment in load_all():
        spoken = {name for claim in experiment.claims for name in spoken_of(claim)}
        assert [name for name in experiment.evidence if f"evidence.{name}" not in spoken] == [], experiment.name

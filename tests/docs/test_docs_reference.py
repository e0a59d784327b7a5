"""What the pages say of measured results is what results/reference/ holds."""

from __future__ import annotations

import json
from collections import Counter

import pages
import pytest

from effbench.experiments.definition import load_all
from effbench.store import Store
from effbench.store.source import opened
from effbench.store.transfer import copy

TABLES = pages.tables()
CLAIMS = json.loads((TABLES.REFERENCE / "claims-h200.json").read_text(encoding="utf-8"))
README = pages.pages()["../README.md"]


def test_the_readmes_table_is_up_to_date():
    assert TABLES.refreshed(README) == README, "run python docs/tables.py"


@pytest.mark.parametrize("marker", ["try", "test"])
def test_the_readme_has_its_two_commands_on_one_line(marker):
    block = README.partition(f"<!-- {marker} -->\n```sh\n")[2].partition("\n```")[0]
    assert block and "\n" not in block
    assert "-c constraints.txt" in block


def test_the_sweeps_to_import_are_those_of_the_tables(tmp_path):
    with Store.open(tmp_path / "reference.db", mode="write") as store:
        with opened(str(TABLES.REFERENCE / "h200-sweeps.db")) as source:
            arrived = list(copy(source, store, source.sweep_ids()))
        found = {row["cell_key"]: row for arrival in arrived for row in store.results(arrival.sweep_id)}
    rows = TABLES.reference_rows()
    assert len(rows) == len(found) == 96
    for row in rows:
        assert found[row["cell_key"]]["latency_ms"] == pytest.approx(row["latency_ms"])


def test_the_numbers_of_claims_are_right():
    verdicts = Counter(row["verdict"] for row in CLAIMS)
    numbers = [len(CLAIMS), *(verdicts[name] for name in ("confirmed", "refuted", "depends", "undecided"))]
    page = " ".join(pages.pages()["explanation/claims.md"].split())
    total, confirmed, refuted, depends, undecided = numbers
    assert f"{total} published statements" in page
    assert (
        f"{confirmed} were confirmed, {refuted} refuted, {depends} depend on the case, {undecided} are undecided"
        in page
    )
    said = f"{confirmed} confirmed, {refuted} refuted, {depends} depend"
    assert f"{total} published claims" in " ".join(README.split()) and said in " ".join(README.split())


def test_the_export_has_every_claim_of_the_experiments():
    statements = {claim.id: claim.text for experiment in load_all() for claim in experiment.claims}
    assert {row["claim"]: row["statement"] for row in CLAIMS} == statements

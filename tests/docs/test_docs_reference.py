"""The tables of measured results are those of results/reference/."""

from __future__ import annotations

import json
from collections import Counter

import pages
import pytest

from effbench.experiments.definition import load_all
from effbench.store import Store
from effbench.store.source import opened
from effbench.store.transfer import copy

REFERENCE = pages.script("reference_tables")


def test_tables_are_up_to_date():
    for page in REFERENCE.PAGES:
        text = page.read_text(encoding="utf-8")
        assert REFERENCE.refreshed(text) == text, f"{page.name}: run python docs/reference_tables.py"


def test_the_sweeps_to_import_are_those_of_the_tables(tmp_path):
    with Store.open(tmp_path / "reference.db", mode="write") as store:
        with opened(str(REFERENCE.ROWS.with_name("h200-sweeps.db"))) as source:
            arrived = list(copy(source, store, source.sweep_ids()))
        found = {row["cell_key"]: row for arrival in arrived for row in store.results(arrival.sweep_id)}
    rows = REFERENCE.rows()
    assert len(rows) == len(found) == 96
    for row in rows:
        assert found[row["cell_key"]]["latency_ms"] == pytest.approx(row["latency_ms"])


def test_what_is_said_of_the_claims_is_so_and_none_is_missing():
    found = json.loads(REFERENCE.CLAIMS.read_text(encoding="utf-8"))
    verdicts = Counter(row["verdict"] for row in found)
    readme = " ".join((pages.ROOT / "README.md").read_text(encoding="utf-8").split())
    said = f"{len(found)} claims](docs/claims.md) {verdicts['confirmed']} were confirmed on an H200, "
    assert f"{said}{verdicts['refuted']} refuted, {verdicts['depends']} depend" in readme
    rows = [json.loads(line) for line in REFERENCE.CLAIM_ROWS.read_text(encoding="utf-8").splitlines()]
    text = " ".join((pages.ROOT / "docs" / "claims.md").read_text(encoding="utf-8").split())
    assert f"the {len(rows)} rows that they rest on, all `ok`" in text
    assert {row["status"] for row in rows} == {"ok"}
    open_ones = ", ".join(row["claim"] for row in found if row["verdict"] == "undecided")
    assert f"({open_ones})" in text
    assert {one for row in found for one in row["measured"].get("sweeps", [])} == {row["sweep_id"] for row in rows}
    statements = {claim.id: claim.text for experiment in load_all() for claim in experiment.claims}
    assert {row["claim"]: row["statement"] for row in found} == statements

"""What the pages say of measured results is what results/reference/ holds."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter

import pages
import pytest
from made_sweeps import faults

from effbench.store import Store
from effbench.store.maintenance import upgrade
from effbench.store.source import opened
from effbench.store.transfer import copy

TABLES = pages.tables()
CLAIMS = json.loads(
    (TABLES.ROOT / "experiments" / "verdicts-h200.json").read_text(encoding="utf-8")
)
README = pages.pages()["../README.md"]


@pytest.mark.parametrize(
    "page", [page for page, text in pages.whole_pages().items() if "<!-- end -->" in text]
)
def test_tables_are_up_to_date(page):
    text = pages.whole_pages()[page]
    assert TABLES.refreshed(text) == text, "run python docs/tables.py"


@pytest.mark.slow
def test_the_sweeps_to_import_are_those_of_the_tables(tmp_path):
    with Store.open(tmp_path / "reference.db", mode="write") as store:
        for gpu in ("h200", "h100"):
            with opened(str(TABLES.REFERENCE / f"{gpu}-sweeps.db")) as source:
                list(copy(source, store, source.sweep_ids()))
        results = [row for sweep in store.sweeps() for row in store.results(sweep.id)]
    found = {(row.sweep_id, row.cell_key): row.latency_ms for row in results}
    rows = TABLES.reference_rows()
    assert len(rows) == 537
    assert len(found) == 547, "and a server at five rates in two modes"
    for row in rows:
        assert found[row.sweep_id, row.cell_key] == pytest.approx(row.latency_ms)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(TABLES.REFERENCE.glob("*.db")), ids=lambda path: path.name)
def test_references_have_no_faults(path, tmp_path):
    copied = str(shutil.copy(path, tmp_path))
    upgrade(copied)
    assert faults(copied) == []


@pytest.mark.parametrize("path", sorted(TABLES.REFERENCE.iterdir()), ids=lambda path: path.name)
def test_no_reference_names_a_path_of_a_machine(path):
    assert re.findall(rb"[\s\"'(]/[a-z]+/[\w.]+", path.read_bytes()) == []


def test_the_numbers_of_claims_are_right():
    page = " ".join(pages.pages()["explanation/claims.md"].split())
    readme = " ".join(README.split())
    assert f"{len(CLAIMS)} published statements" in page
    assert f"{len(CLAIMS)} published claims" in readme
    found = Counter(row["verdict"] for row in CLAIMS)
    numbers = (
        "{confirmed} were confirmed, {refuted} refuted, {depends} depend on the case, {undecided}"
        " are undecided"
    )
    assert numbers.format_map(found) in page
    assert "{confirmed} confirmed, {refuted} refuted, {depends} depend".format_map(found) in readme

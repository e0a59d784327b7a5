"""The tables of measured results are those of results/reference/."""

from __future__ import annotations

import pages
import pytest


def test_tables_are_up_to_date():
    reference = pages.script("reference_tables")
    for page in reference.PAGES:
        text = page.read_text(encoding="utf-8")
        assert reference.refreshed(text) == text, f"{page.name}: run python docs/reference_tables.py"


@pytest.mark.parametrize("marker", ["try", "test"])
def test_the_readme_has_its_two_commands_on_one_line(marker):
    text = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    block = text.partition(f"<!-- {marker} -->\n```sh\n")[2].partition("\n```")[0]
    assert block and "\n" not in block
    assert "-c constraints.txt" in block


def test_the_ledger_has_every_claim_of_the_experiments():
    import json

    from effbench.reproduce.experiment import load_all

    reference = pages.script("reference_tables")
    exported = json.loads(reference.CLAIMS.read_text(encoding="utf-8"))
    statements = {claim.id: claim.text for experiment in load_all() for claim in experiment.claims}
    assert {row["claim"]: row["statement"] for row in exported} == statements

"""The published claims with their verdicts, as the site shows them."""

from __future__ import annotations

from effbench.experiments.definition import Claim, load_all
from effbench.report.claims import Entry, entries
from effbench.store.store import Store


def ledger(store: Store) -> list[Entry]:
    """The claims that ship, and those of other experiments that this database holds a verdict of."""
    claims = [(experiment.name, claim) for experiment in load_all() for claim in experiment.claims]
    verdicts = store.verdicts()
    known = {(name, claim.id) for name, claim in claims}
    others = dict.fromkeys((row["experiment"], row["claim"]) for row in verdicts)
    text = "(a claim of an experiment of your own: its statement is in that experiment's file)"
    claims += [(name, Claim(claim, text)) for name, claim in others if (name, claim) not in known]
    return entries(claims, verdicts)

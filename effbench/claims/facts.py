"""The facts that a check returned, as a claim reads them."""

from __future__ import annotations

from typing import Any

from effbench.claims.figures import Figure, missing


class ClaimFacts(dict[str, Any]):
    """The facts of a check or of a part of it, read as attributes or by key.

    `absence`: why it has no further facts, if it was unsupported or failed; they are missing
    figures.
    """

    absence = ""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        if self.absence:
            return missing(self.absence)
        raise LookupError(f"the check returned no {name!r}; it has {', '.join(self)}")


def no_facts(reason: str) -> ClaimFacts:
    facts = ClaimFacts()
    facts.absence = reason
    return facts


def facts_of(value: Any) -> Any:
    """Return JSON as facts: mappings of value, low and high are figures, others ClaimFacts."""
    if isinstance(value, list):
        return [facts_of(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"value", "low", "high"}:
        return Figure(**value)
    facts = ClaimFacts()
    for name, item in value.items():
        facts[name] = facts_of(item)
    if value.get("unsupported"):
        facts.absence = f"unsupported: {value['unsupported']}"
    elif value.get("succeeded") is False:
        facts.absence = f"{value.get('error_type')}: {value.get('error')}"
    return facts

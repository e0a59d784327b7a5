"""The facts that a check returned, as a claim reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from effbench.experiments.figures import ClaimError, Figure, missing


class Facts(dict[str, Any]):
    """The facts of a check or of a part of it, read as attributes or by key.

    `absence`: why it has no other facts, if it was unsupported or failed; they are missing figures.
    """

    def __init__(self, facts: Mapping[str, Any], absence: str | None = None) -> None:
        super().__init__(facts)
        self.absence = absence

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self[name]

    def __missing__(self, name: str) -> Any:
        if self.absence is not None:
            return missing(self.absence)
        known = ", ".join(map(str, self)) or "nothing"
        raise ClaimError(f"the check returned no {name!r}; it has {known}")


def facts_of(value: Any) -> Any:
    """Return JSON as facts: mappings of value, low and high are figures, other mappings Facts."""
    if isinstance(value, list):
        return [facts_of(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() == {"value", "low", "high"}:
        return Figure(**value)
    facts = {name: facts_of(item) for name, item in value.items()}
    return Facts(facts, absence_in(value))


def absence_in(part: Mapping[str, Any]) -> str | None:
    if isinstance(part.get("unsupported"), str):
        return f"unsupported: {part['unsupported']}"
    if part.get("succeeded") is False:
        reason = part.get("error") or "no reason recorded"
        return f"{part.get('error_type') or 'error'}: {reason}"
    return None

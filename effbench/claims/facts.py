"""The facts that a check returned, as a claim reads them."""

from __future__ import annotations

import json
from typing import Any

from effbench.claims.figures import Figure, missing


class ClaimFacts(dict[str, Any]):
    """The facts of a check or of a part of it, read as attributes or by key. If it was unsupported
    or failed, further facts are missing figures."""

    @property
    def absence(self) -> str:
        """Why it has no further facts; empty if it ran."""
        if self.get("unsupported"):
            return f"unsupported: {self['unsupported']}"
        if self.get("succeeded") is False:
            return f"{self.get('error_type')}: {self.get('error')}"
        return ""

    def __missing__(self, name: str) -> Any:
        if self.absence:
            return missing(self.absence)
        raise AttributeError(f"the check returned no {name!r}; it has {', '.join(self)}")

    __getattr__ = dict.__getitem__


def facts_of(value: Any) -> Any:
    """Return JSON as facts: mappings of value, low and high are figures, others ClaimFacts."""
    return json.loads(json.dumps(value), object_hook=_facts)


def _facts(mapping: dict[str, Any]) -> Figure | ClaimFacts:
    if mapping.keys() == {"value", "low", "high"}:
        return Figure(**mapping)
    return ClaimFacts(mapping)

"""Each mode over all models and batch sizes of a sweep: geometric mean of its speedups, with pass rate and interval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from effbench.analysis.statistics import ModeScore, Outcome, mode_score
from effbench.analysis.swept import plain


def score(rows: Iterable[Mapping[str, Any]]) -> ModeScore:
    """Of the rows of the view `results` of one mode; NaN counts as NULL."""
    names = ("status", "speedup", "speedup_ci_low", "speedup_ci_high", "trials")
    outcomes = (Outcome(*(plain(row.get(name)) for name in names)) for row in rows)
    return mode_score(outcome._replace(status=str(outcome.status)) for outcome in outcomes)


def describe(found: ModeScore) -> str:
    """`1.93× (1.88–1.98), 14 of 15 ok`; without speedup only how many are ok."""
    passed = f"{found.passed} of {found.total} ok"
    if found.value is None:
        return passed
    known = found.low is not None and found.low < found.high
    interval = f" ({found.low:.2f}–{found.high:.2f})" if known else ""
    return f"{found.value:.2f}×{interval}, {passed}"

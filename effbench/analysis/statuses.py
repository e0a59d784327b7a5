"""What it means that a cell ended otherwise in one sweep than in another.

Statuses fall into four classes, best first: it works (`ok`, `noisy`: it ran as its name says, if disturbed); it gives
figures, though not of what its name says (`degraded`); it cannot run here, which is an answer (`oom`, `unsupported`);
it failed (`error`, `timeout`, `crashed`, `incorrect`). Down a class is `broken`, up to one with figures is `fixed`.
"""

from __future__ import annotations

from effbench.analysis.verdicts import Verdict
from effbench.cell import Status

_WORKS, _OTHERWISE, _ANSWER, _FAILURE = 0, 1, 2, 3
#: Status -> its class; a smaller number is better.
CLASSES = {
    Status.OK: _WORKS,
    Status.NOISY: _WORKS,
    Status.DEGRADED: _OTHERWISE,
    Status.OOM: _ANSWER,
    Status.UNSUPPORTED: _ANSWER,
    Status.ERROR: _FAILURE,
    Status.TIMEOUT: _FAILURE,
    Status.CRASHED: _FAILURE,
    Status.INCORRECT: _FAILURE,
}


def gives_figures(status: str | None) -> bool:
    """False also for None, a cell that was not measured."""
    return status is not None and Status(status).is_measured


def verdict_of_statuses(before: str | None, now: str | None) -> Verdict | None:
    """The verdict on a cell by its statuses (None: not measured); None where its figures are to be compared.

    A cell that fails otherwise than before is `same`, as long as it stays in its class or becomes an answer: its row
    tells the change, and nothing that was relied on is lost. Raises ValueError for what is no status, and where neither
    side was measured.
    """
    if before is None or now is None:
        if before is now:
            raise ValueError("a cell that was measured on neither side has no verdict")
        return Verdict.NEW if before is None else Verdict.MISSING
    old, new = CLASSES[Status(before)], CLASSES[Status(now)]
    if new > old:
        return Verdict.BROKEN
    if new < old:
        return Verdict.FIXED if gives_figures(now) else Verdict.SAME
    if not gives_figures(now):
        return Verdict.SAME
    return Verdict.AMBIGUOUS if Status.NOISY in (before, now) else None


def is_guarded(before: str | None, now: str | None) -> bool:
    """Does a check fail where the verdict is `broken` or `missing`? A cell that gave no figures is missed by nobody."""
    return now is not None or gives_figures(before)


def is_worse(before: str | None, now: str | None) -> bool:
    """Measured both times, and a class lower now."""
    return None not in (before, now) and verdict_of_statuses(before, now) is Verdict.BROKEN

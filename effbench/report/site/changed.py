"""What changed on this hardware since the sweep before, for the overview."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.comparison.verdicts import STATUS, Change, Verdict
from effbench.metrics import METRICS, ratio_text
from effbench.report import comparison

#: Rows that a reader takes in at a glance.
MOST_ROWS = 10
TONES = {Verdict.BROKEN: "status", Verdict.SLOWER: "status", Verdict.MISSING: "status", Verdict.AMBIGUOUS: "unsure"}


@dataclass(frozen=True)
class Changes:
    """`previous`: the sweep that `sweep_id` was compared with (a row; None: there is none). `compared`: what
    effbench.comparison.compare says of it, None where nothing could be compared; `why` then says the reason. `only`:
    the metrics that were compared, where these are not all; `command`: what a user types to compare the two."""

    previous: Mapping[str, Any] | None = None
    compared: Any | None = None
    why: str | None = None
    sweep_id: str = "last"
    only: Sequence[str] = ()
    command: str = ""


def changed(found: Changes, most: int = MOST_ROWS) -> dict[str, Any]:
    """Plain values for a template, see templates/changed.html.j2.

    `counts`: verdict -> rows, what matters most first. `rows`: what is sure to differ, at most `most`, with cell, key,
    word, tone, metric, before, after, ratio, reason; `more`: how many further ones. `modes`: see `modes_of`.
    `differences`: in software, flags, protocol. `command`: what shows all of it. `only`: titles of the metrics that
    were compared, where these are not all. `quiet`: nothing is sure to have changed; `told`: whether the trials could
    show a verdict on a time at all.
    """
    compared = found.compared
    if compared is None:
        why = found.why or "There is no earlier sweep to compare with."
        return {"previous": found.previous, "why": why, "counts": {}, "rows": [], "more": 0, "modes": [],
                "differences": [], "told": False, "quiet": False, "command": "", "only": []}  # fmt: skip
    # an open question is no answer: it is counted alone
    sure = [change for change in compared.changes if change.verdict not in (Verdict.SAME, Verdict.AMBIGUOUS)]
    shown = sure[:most]
    return {
        "previous": found.previous,
        "why": None,
        "counts": {str(verdict): number for verdict, number in compared.counts.items()},
        "rows": [row_of(change) for change in shown],
        "more": len(sure) - len(shown),
        "modes": modes_of(compared.modes),
        "differences": list(compared.differences),
        "told": any(change.smallest_slowdown is not None for change in compared.changes),
        "quiet": not sure,
        "only": [METRICS[name].title for name in found.only],
        "command": found.command or f"effbench compare {found.previous['id']} {found.sweep_id}",
    }


def modes_of(lines: Sequence[Any]) -> list[dict[str, Any]]:
    """A row for each phase and mode: `figures` is metric -> geometric mean of after ÷ before over `cells` cells, with
    its bounds if they are known, as text. `phase` is empty where there is only one."""
    several = len({line.phase for line in lines}) > 1
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for line in lines:
        new = {"phase": line.phase if several else "", "mode": line.mode, "cells": line.cells, "figures": {}}
        row = found.setdefault((line.phase, line.mode), new)
        row["figures"][METRICS[line.metric].title] = comparison.mean_text(line.ratio, line.low, line.high)
        row["cells"] = max(row["cells"], line.cells)
    return list(found.values())


def row_of(change: Change) -> dict[str, Any]:
    return {
        "cell": change.name,
        "key": change.key,
        "verdict": str(change.verdict),
        "word": comparison.word_of(change),
        "tone": TONES.get(change.verdict, ""),
        "metric": "status" if change.metric == STATUS else METRICS[change.metric].title,
        "before": comparison.figure(change.metric, change.before),
        "after": comparison.figure(change.metric, change.after),
        "ratio": ratio_text(change.ratio, change.low, change.high),
        "reason": change.reason or "",
    }

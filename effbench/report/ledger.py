"""The ledger of claims: each with what measuring said of it, as text for a terminal, a page or a program."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.analysis.claims import Claim, Judgement, Verdict
from effbench.analysis.estimate import ABSENT as LACKING
from effbench.analysis.estimate import Estimate, Vector
from effbench.analysis.expression import NothingMeasured, evaluate
from effbench.analysis.rows import Rows
from effbench.metrics import significant
from effbench.printable import one_line
from effbench.store.secrets import masked

HEADINGS = ("claim", "statement", "verdict", "measured", "why", "on")
ABSENT = "—"


@dataclass(frozen=True)
class Entry:
    """A claim with its newest judgement on one machine (None: `not measured yet`)."""

    claim: Claim
    experiment: str
    verdict: str
    measured: Mapping[str, Any]
    reason: str
    machine: str | None = None
    judged_at: str | None = None

    @property
    def figure(self) -> str:
        found = self.measured
        return figure_text(found.get("value"), found.get("low"), found.get("high"), found.get("unit") or "")


def figure_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """`1.43× [1.40, 1.47]`; a share in per cent where its unit is %."""
    if value is None:
        return ABSENT
    scale = 100 if unit == "%" else 1
    space = "" if unit in ("×", "%", "") else " "

    def text(number: float) -> str:
        number *= scale
        return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else significant(number, 3)

    said = f"{text(value)}{space}{unit}"
    if low is None or high is None or low == high:
        return said
    return f"{said} [{text(low)}, {text(high)}]"


def estimate_text(value: Any, unit: str = "") -> str:
    """Any value of the language of claims, for a person."""
    if isinstance(value, Estimate):
        if math.isnan(value.value):
            return "not defined"
        finite = math.isfinite(value.low) and math.isfinite(value.high)
        return figure_text(value.value, value.low if finite else None, value.high if finite else None, unit)
    if value is None or value is LACKING:
        return ABSENT
    if isinstance(value, Vector | list | tuple):
        return ", ".join(estimate_text(item, unit) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def entries(claims: Sequence[tuple[str, Claim]], verdicts: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """A line for each claim and machine; `claims`: with the experiment that judges each. Ids in their natural order."""
    judged: dict[str, list[Mapping[str, Any]]] = {}
    for row in verdicts:
        judged.setdefault(row["claim"], []).append(row)
    found = []
    for experiment, claim in sorted(claims, key=lambda pair: natural(pair[1].id)):
        rows = [row for row in judged.get(claim.id, ()) if row["experiment"] == experiment]
        for row in rows:
            machine = f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}"
            at = row["judged_at"].isoformat(timespec="seconds")
            reason = (row["reason"] or "") + asked_with(row["measured"] or {})
            found.append(Entry(claim, experiment, row["verdict"], row["measured"], reason, machine, at))
        if not rows:
            verdict = Verdict.NOT_MEASURABLE if claim.not_measurable else Verdict.NOT_MEASURED
            reason = claim.not_measurable or f"effbench reproduce {experiment}"
            found.append(Entry(claim, experiment, str(verdict), {}, reason))
    return found


def asked_with(measured: Mapping[str, Any]) -> str:
    """What was measured otherwise than the experiment says: another batch size or protocol is another question."""
    words = masked(measured.get("overrides") or ())
    return f"; asked with {' '.join(words)}" if words else ""


def natural(name: str) -> tuple:
    """`P2` before `P10`."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0), name


def row_of(entry: Entry) -> tuple[str, ...]:
    """Under HEADINGS."""
    return (entry.claim.id, entry.claim.text, entry.verdict, entry.figure, entry.reason, entry.machine or ABSENT)


def render(found: Sequence[Entry], form: str) -> str:
    """`markdown` or `json`."""
    if form == "json":
        return json.dumps([plain(entry) for entry in found], indent=1, ensure_ascii=False)
    rows = [HEADINGS, ("---",) * len(HEADINGS), *(row_of(entry) for entry in found)]
    lines = ["| " + " | ".join(one_line(text).replace("|", "\\|") for text in row) + " |" for row in rows]
    published = [entry for entry in {entry.claim.id: entry for entry in found}.values() if entry.claim.published]
    if published:
        lines += ["", "Published figures, measured by others on other machines:", ""]
        lines += [f"- {entry.claim.id}: {entry.claim.published}" for entry in published]
    return "\n".join(lines) + "\n"


def plain(entry: Entry) -> dict[str, Any]:
    return {
        "claim": entry.claim.id,
        "statement": entry.claim.text,
        "experiment": entry.experiment,
        "verdict": entry.verdict,
        "reason": entry.reason,
        "machine": entry.machine,
        "judged_at": entry.judged_at,
        "measured": dict(entry.measured),
        "published": entry.claim.published,
    }


def judged_figure(judgement: Judgement) -> str:
    return estimate_text(judgement.value, judgement.unit) if judgement.value else ABSENT


# --- the tables of an experiment ---


@dataclass(frozen=True)
class Pivot:
    """`headings`: of the labels, then of the columns; `rows`: as many texts each."""

    title: str
    headings: tuple[str, ...]
    labels: int
    rows: list[tuple[str, ...]]


def pivot(title: str, value: str, unit: str, row_names: Sequence[str], column: str, rows: Rows) -> Pivot:
    """One value (an expression that gives one a row) for each combination. What is not `ok` shows its status."""
    if not rows.rows:
        return Pivot(title, (*row_names, column), len(row_names), [])
    try:
        found = evaluate(value, rows)
    except NothingMeasured:
        found = Vector((LACKING,) * len(rows.rows))
    if not isinstance(found, Vector) or len(found) != len(rows.rows):
        found = Vector((found,) * len(rows.rows))
    statuses = rows.value_of("status")
    labels = [rows.value_of(name) for name in row_names]
    across = rows.value_of(column)
    columns = list(dict.fromkeys(estimate_text(item) for item in across))
    cells: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for index, item in enumerate(found):
        key = tuple(estimate_text(label.values[index]) for label in labels)
        status = str(statuses.values[index])
        shown = status if item is LACKING and status != "ok" else estimate_text(item, unit)
        cells.setdefault(key, {}).setdefault(estimate_text(across.values[index]), []).append(shown)
    body = [(*key, *(", ".join(own.get(name, [ABSENT])) for name in columns)) for key, own in cells.items()]
    return Pivot(title, (*row_names, *columns), len(row_names), body)

"""Published claims with what measuring said of them, and the tables of experiments, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from effbench.experiments.definition import Claim, Pivot
from effbench.experiments.figures import Figure, Missing, Truth
from effbench.metrics import significant
from effbench.store.decisions import ClaimVerdict
from effbench.store.secrets import masked
from effbench.table import Column, Shown, Table

ABSENT = "—"
#: Verdict -> tone of the table.
TONES = {
    ClaimVerdict.CONFIRMED: "good", ClaimVerdict.REFUTED: "bad", ClaimVerdict.DEPENDS: "status",
    ClaimVerdict.UNDECIDED: "status", ClaimVerdict.NOT_MEASURABLE: "unsure", ClaimVerdict.NOT_MEASURED: "unsure",
}  # fmt: skip


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

    def record(self) -> dict[str, Any]:
        return {
            "claim": self.claim.id,
            "statement": self.claim.text,
            "experiment": self.experiment,
            "verdict": self.verdict,
            "reason": self.reason,
            "machine": self.machine,
            "judged_at": self.judged_at,
            "measured": dict(self.measured),
            "published": self.claim.published,
        }


def figure_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """`1.43× [1.40, 1.47]`; a fraction in per cent if its unit is %."""
    if value is None:
        return ABSENT
    scale = 100 if unit == "%" else 1
    space = "" if unit in ("×", "%", "") else " "

    def text(number: float) -> str:
        number *= scale
        return f"{number:.0f}" if float(number).is_integer() and abs(number) < 1e15 else significant(number, 3)

    shown = f"{text(value)}{space}{unit}"
    return shown if low is None or high is None or low == high else f"{shown} [{text(low)}, {text(high)}]"


def value_text(value: Any, unit: str = "") -> str:
    """Any value of a claim, for a person."""
    if value is None or isinstance(value, Missing) or (isinstance(value, float) and math.isnan(value)):
        return ABSENT
    if isinstance(value, Figure):
        if math.isnan(value.value):
            return "not defined"
        finite = math.isfinite(value.low) and math.isfinite(value.high)
        return figure_text(value.value, value.low if finite else None, value.high if finite else None, unit)
    if isinstance(value, list | tuple):
        return ", ".join(value_text(item, unit) for item in value)
    if isinstance(value, Truth):
        value = "null" if value.holds is None else value.holds
    if isinstance(value, int | float) and not isinstance(value, bool):
        return figure_text(value, None, None, unit)
    return str(value).lower() if isinstance(value, bool) else str(value)


def entries(claims: Sequence[tuple[str, Claim]], verdicts: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """A line for each claim and machine; `claims`: with the experiment that judges each. Ids in their natural order."""
    judged: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in verdicts:
        judged.setdefault((row["experiment"], row["claim"]), []).append(row)
    found = []
    for experiment, claim in sorted(claims, key=lambda pair: natural(pair[1].id)):
        rows = judged.get((experiment, claim.id), ())
        for row in rows:
            machine = f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}"
            measured = row["measured"] or {}
            words = masked(measured.get("overrides") or ())  # another batch size or protocol is another question
            reason = (row["reason"] or "") + (f"; asked with {' '.join(words)}" if words else "")
            at = row["judged_at"].isoformat(timespec="seconds")
            found.append(Entry(claim, experiment, row["verdict"], row["measured"], reason, machine, at))
        if not rows:
            verdict = ClaimVerdict.NOT_MEASURABLE if claim.not_measurable else ClaimVerdict.NOT_MEASURED
            reason = claim.not_measurable or f"effbench reproduce {experiment}"
            found.append(Entry(claim, experiment, str(verdict), {}, reason))
    return found


def natural(name: str) -> tuple:
    """`P2` before `P10`."""
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0), name


def claims_table(found: Sequence[Entry]) -> Table:
    columns = [Column(key) for key in ("claim", "statement", "verdict", "measured", "why")]
    columns.append(Column("on", optional=True))
    rows = [
        {
            "claim": entry.claim.id,
            "statement": entry.claim.text,
            "verdict": Shown(entry.verdict, entry.verdict, TONES.get(entry.verdict, "")),  # one of a later effbench
            "measured": entry.figure,
            "why": entry.reason,
            "on": entry.machine or "",
        }
        for entry in found
    ]
    return Table(columns, rows, [entry.record() for entry in found], group="claim")


def pivot_table(pivot: Pivot, rows: Any) -> Table:
    """One value for each combination, of a frame of rows. A row that is not `ok` shows its status."""
    values = pivot.value(rows) if callable(pivot.value) else rows[pivot.value]
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    across: dict[str, None] = {}
    for (_, row), value in zip(rows.iterrows(), values, strict=True):
        heading = value_text(row[pivot.columns])
        across[heading] = None
        text = value_text(value, pivot.unit)
        if text == ABSENT and row["status"] != "ok":
            text = row["status"]
        key = tuple(value_text(row[name]) for name in pivot.rows)
        lines.setdefault(key, {}).setdefault(heading, []).append(text)
    columns = [Column(name) for name in pivot.rows] + [Column(f"{name} ", name, numeric=True) for name in across]
    body = [
        {**dict(zip(pivot.rows, key, strict=True)), **{f"{name} ": ", ".join(texts) for name, texts in line.items()}}
        for key, line in lines.items()
    ]
    return Table(columns, [{**{f"{name} ": ABSENT for name in across}, **line} for line in body])

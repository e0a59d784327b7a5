"""Published claims with their measured verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from effbench.claims.definition import shipped_verdicts
from effbench.claims.figures import Figure
from effbench.core.labels import ABSENT, grouped, natural
from effbench.core.metrics import is_missing, significant
from effbench.core.table import Column, Shown, Table
from effbench.stats.intervals import is_number
from effbench.store.decisions import ClaimVerdict
from effbench.store.secrets import masked

#: A record of `entries`, or a row of the table `claim_verdict` with its environment.
Record = Mapping[str, Any]
#: Statement of a claim that was judged by an earlier effbench.
NO_STATEMENT = "(claim of your own experiment; its file has the statement)"
#: Verdict -> tone of the table.
TONES = {
    ClaimVerdict.CONFIRMED: "good",
    ClaimVerdict.REFUTED: "status",
    ClaimVerdict.DEPENDS: "",
    ClaimVerdict.UNDECIDED: "",
    ClaimVerdict.NOT_MEASURABLE: "unsure",
    ClaimVerdict.NOT_MEASURED: "unsure",
}


class ClaimKey(NamedTuple):
    experiment: str
    claim: str


def figure_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """Return a value with its interval, `1.43× [1.40, 1.47]`. With the unit %, `value` is a
    fraction."""
    if value is None:
        return ABSENT
    if len(unit) > 2 and "/" not in unit and value == 1:
        unit = unit.removesuffix("s")  # 1 warm-up
    text = number_text(value, unit)
    if unit not in ("×", "%", ""):
        text += " "
    text += unit
    if low is None or high is None or low == high:
        return text
    return f"{text} [{number_text(low, unit)}, {number_text(high, unit)}]"


def number_text(number: float, unit: str) -> str:
    scaled = float(number)
    if unit == "%":
        scaled *= 100
    if scaled.is_integer() and abs(scaled) < 1e15:
        return f"{scaled:.0f}"
    return significant(scaled, 3)


def value_text(value: Any, unit: str = "") -> str:
    """Return any value of a claim as text."""
    if isinstance(value, Figure):
        if math.isfinite(value.low) and math.isfinite(value.high):
            return figure_text(value.value, value.low, value.high, unit)
        value = value.value
    if is_missing(value):
        return ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return figure_text(value, None, None, unit)
    if isinstance(value, list):
        return ", ".join(value_text(item, unit) for item in value)
    return str(value)


def entries(verdicts: Iterable[Record]) -> list[dict[str, Any]]:
    """Return one record per claim and machine, with the newest verdict, in natural order of the
    claims' ids.

    They are the shipped claims, and others that have one of these `verdicts`, which are as
    `Store.verdicts` returns them. A shipped claim without one has that of the reference machine.
    """
    by_claim = grouped(verdicts, _key_of)
    shipped = {_key_of(record): record for record in shipped_verdicts()}
    records = []
    for key in sorted(shipped | by_claim, key=lambda key: natural(key.claim)):
        if key not in by_claim:
            records.append(_shipped(shipped[key]))
            continue
        judged = by_claim[key]
        known: Record = judged[-1]["measured"]
        if key in shipped:
            known = shipped[key]
        records += [_judgement(row, known) for row in judged]
    return records


def _key_of(record: Record) -> ClaimKey:
    return ClaimKey(record["experiment"], record["claim"])


def _shipped(record: Record) -> dict[str, Any]:
    """Return the record of a shipped verdict."""
    measured = dict(record["measured"])
    measured.pop("sweeps", None)  # they are not in this database
    machine = f"{record['machine']} (reference)"
    return {**record, "machine": machine, "measured": measured, "reference": True}


def _judgement(row: Record, known: Record) -> dict[str, Any]:
    """Return the record of a verdict of the database. `known`: has statement and published figures
    of the claim."""
    measured = dict(row["measured"])
    for name in ("statement", "published"):  # the record has them already
        measured.pop(name, None)
    reason = row["reason"] or ""
    words = masked(measured.get("overrides") or ())  # overrides such as bs=4 change what is tested
    if words:
        reason += f"; measured with {' '.join(words)}"
    return {
        "claim": row["claim"],
        "statement": known.get("statement") or NO_STATEMENT,
        "experiment": row["experiment"],
        "verdict": row["verdict"],
        "reason": reason,
        "machine": f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}",
        "judged_at": row["judged_at"].isoformat(timespec="seconds"),
        "measured": measured,
        "published": known.get("published"),
        "reference": False,
    }


def claims_table(
    records: Sequence[Record],
    pages: Mapping[str, str] | None = None,
) -> Table:
    """Return a table with one row per record of `entries`. `pages`: sweep id -> URL of its page on
    the site, to which experiments are linked."""
    pages = pages or {}

    def verdict(record: Record) -> Shown:
        word = record["verdict"]
        return Shown(word, word, TONES.get(word, ""))  # a newer effbench may know others

    def measured(record: Record) -> Shown:
        value, low, high, unit = map(record["measured"].get, ("value", "low", "high", "unit"))
        text = figure_text(value, low, high, unit or "")
        return Shown(value if is_number(value) else None, text)

    def experiment(record: Record) -> Shown:
        """Return the experiment with the newest sweep behind the verdict, or the first that the
        site shows."""
        name, sweeps = record["experiment"], record["measured"].get("sweeps")
        if not sweeps:
            return Shown(None, name)
        for sweep_id in map(str, sweeps):
            if sweep_id in pages:
                return Shown(None, name, sub=f"sweep {sweep_id}", link=pages[sweep_id])
        return Shown(None, name, sub=f"sweep {sweeps[-1]}")

    def machine(record: Record) -> Shown:
        judged_at = record["judged_at"][:16].replace("T", " ")
        return Shown(None, record["machine"], "name", sub=f"judged {judged_at} UTC")

    others = "figures of others, measured on other machines"
    interval = "figure behind the verdict, with its 95 % interval"
    columns = [
        Column("claim", help="id of the claim in effbench claims"),
        Column("statement", wide=True),
        Column("verdict", filter=True, value=verdict),
        Column("measured", numeric=True, help=interval, value=measured),
        Column("published", wide=True, help=others, value=lambda record: record["published"] or ""),
        Column("reason", "why", wide=True),
        Column("experiment", filter=True, value=experiment),
        Column("machine", filter=True, value=machine),
    ]
    return Table(columns, records, records, caption="Claims with their verdicts")

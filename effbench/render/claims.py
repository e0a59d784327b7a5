"""Published claims with their measured verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from effbench.claims.definition import shipped_verdicts
from effbench.claims.figures import Figure
from effbench.core.labels import ABSENT, natural
from effbench.core.quantities import significant
from effbench.core.table import Column, Record, Shown, Table
from effbench.store.schema import ClaimVerdict
from effbench.store.secrets import masked

#: Statement of a claim that was judged by an earlier effbench.
NO_STATEMENT = "(claim of your own experiment; its file has the statement)"
#: Verdict -> tone of the table, if it has one.
TONES = {
    ClaimVerdict.CONFIRMED: "good",
    ClaimVerdict.REFUTED: "status",
    ClaimVerdict.NOT_MEASURABLE: "unsure",
    ClaimVerdict.NOT_MEASURED: "unsure",
}


class ClaimKey(NamedTuple):
    experiment: str
    claim: str


#: An interval this many times as wide as its value tells nothing.
UNKNOWN = 1000


def figure_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """Return a value with its interval, `1.43× [1.40, 1.47]`. With the unit %, `value` is a
    fraction."""
    if value is None or math.isnan(value):
        return ABSENT
    if len(unit) > 2 and "/" not in unit and value == 1:
        unit = unit.removesuffix("s")  # 1 warm-up
    text = number_text(value, unit)
    if unit not in ("×", "%", ""):
        text += " "
    text += unit
    if low is None or high is None:
        return text
    width = high - low
    if not 0 < width < math.inf or width > UNKNOWN * abs(value) > 0:
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
        return figure_text(value.value, value.low, value.high, unit)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | None):
        return figure_text(value, None, None, unit)
    if isinstance(value, list):
        return ", ".join(value_text(item, unit) for item in value)
    return str(value)


def entries(verdicts: Iterable[Record]) -> list[Record]:
    """Return one record per claim and machine, with the newest verdict, in natural order of the
    claims' ids.

    They are the shipped claims, and others that have one of these `verdicts`, which are as
    `Store.verdicts` returns them. A shipped claim without one has that of the reference machine.
    """
    shipped = {key_of(record): record for record in shipped_verdicts()}
    records = [_judgement(row, shipped.get(key_of(row)) or row["measured"]) for row in verdicts]
    judged = set(map(key_of, records))
    records += [_shipped(record) for key, record in shipped.items() if key not in judged]
    return sorted(records, key=lambda record: natural(record["claim"]))


def key_of(record: Record) -> ClaimKey:
    return ClaimKey(record["experiment"], record["claim"])


def _shipped(record: Record) -> dict[str, Any]:
    """Return the record of a shipped verdict."""
    measured = dict(record["measured"])
    measured.pop("sweeps", None)  # they are not in this database
    return {
        **record,
        "machine": f"{record['machine']} (reference)",
        "measured": measured,
        "reference": True,
    }


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


def claims_table(records: Sequence[Record]) -> Table:
    """Return a table with one row per record of `entries`."""
    columns = [
        Column("claim", help="id of the claim in effbench claims"),
        Column("statement", wide=True),
        Column("verdict", filter=True),
        Column("measured", numeric=True, help="figure behind the verdict, with its 95 % interval"),
        Column("published", wide=True, help="figures of others, measured on other machines"),
        Column("reason", "why", wide=True),
        Column("experiment", filter=True),
        Column("machine", filter=True),
    ]
    return Table(columns, list(map(row_of, records)), records, caption="Claims with their verdicts")


def row_of(record: Record) -> Record:
    """Return a row of the table. Its experiment has the newest sweep behind the verdict."""
    verdict, measured = record["verdict"], record["measured"]
    value, low, high, unit = map(measured.get, ("value", "low", "high", "unit"))
    sweeps = [f"sweep {sweep_id}" for sweep_id in measured.get("sweeps", ())]
    judged_at = record["judged_at"][:16].replace("T", " ")
    machine = Shown(None, record["machine"], "name", f"judged {judged_at} UTC")
    return {
        "claim": record["claim"],
        "statement": record["statement"],
        "verdict": Shown(verdict, verdict, TONES.get(verdict, "")),
        "measured": Shown(value, figure_text(value, low, high, unit or "")),
        "published": record["published"] or "",
        "reason": record["reason"],
        "experiment": Shown(None, record["experiment"], details="".join(sweeps[-1:])),
        "machine": machine,
    }

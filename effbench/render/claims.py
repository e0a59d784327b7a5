"""Published claims with their measured verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from effbench.claims.definition import Claim, shipped_verdicts
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


def figure_text(value: float | None, low: float | None, high: float | None, unit: str) -> str:
    """Return a value with its interval, `1.43× [1.40, 1.47]`. With the unit %, `value` is a
    fraction."""
    if value is None:
        return ABSENT
    if len(unit) > 2 and "/" not in unit and value == 1:
        unit = unit.removesuffix("s")  # 1 warm-up
    space = "" if unit in ("×", "%", "") else " "
    text = f"{number_text(value, unit)}{space}{unit}"
    if low is None or high is None or low == high:
        return text
    return f"{text} [{number_text(low, unit)}, {number_text(high, unit)}]"


def number_text(number: float, unit: str) -> str:
    scaled = 100.0 * number if unit == "%" else float(number)
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
    if isinstance(value, list | tuple):
        return ", ".join(value_text(item, unit) for item in value)
    return str(value)


def entries(verdicts: Iterable[Record]) -> list[dict[str, Any]]:
    """Return one record per claim and machine, with the newest verdict, in natural order of the
    claims' ids. `machine` is None without a verdict.

    They are the shipped claims, and others that have one of these `verdicts`, which are as
    `Store.verdicts` returns them. A shipped claim without one has that of the reference machine.
    """
    by_claim = grouped(verdicts, lambda row: (row["experiment"], row["claim"]))
    reference = {(record["experiment"], record["claim"]): record for record in shipped_verdicts()}
    claims = {
        key: Claim(record["claim"], record["statement"], published=record["published"])
        for key, record in reference.items()
    }
    for key, rows in by_claim.items():
        measured = rows[-1]["measured"] or {}
        text = measured.get("statement") or NO_STATEMENT
        claims.setdefault(key, Claim(key[1], text, published=measured.get("published")))
    records = []
    for key, claim in sorted(claims.items(), key=lambda item: natural(item[1].id)):
        experiment, _ = key
        unmeasured: dict[str, Any] = {
            "claim": claim.id,
            "statement": claim.text,
            "experiment": experiment,
            "verdict": str(ClaimVerdict.NOT_MEASURED),
            "reason": f"effbench reproduce {experiment}",
            "machine": None,
            "judged_at": None,
            "measured": {},
            "published": claim.published,
            "reference": False,
        }
        judged = [_judgement(row) for row in by_claim.get(key, ())]
        if not judged and key in reference:
            judged = [_shipped(reference[key])]
        records += [unmeasured | judgement for judgement in judged or [{}]]
    return records


def _shipped(record: Record) -> dict[str, Any]:
    """Return what a shipped verdict adds to a record."""
    measured = dict(record["measured"])
    measured.pop("sweeps", None)  # they are not in this database
    machine = f"{record['machine']} (reference)"
    return {**record, "machine": machine, "measured": measured, "reference": True}


def _judgement(row: Record) -> dict[str, Any]:
    """Return what a verdict of the database adds to a record."""
    measured = dict(row["measured"] or {})
    for name in ("statement", "published"):  # the record has them already
        measured.pop(name, None)
    reason = row["reason"] or ""
    words = masked(measured.get("overrides") or ())  # overrides such as bs=4 change what is tested
    if words:
        reason += f"; measured with {' '.join(words)}"
    return {
        "verdict": row["verdict"],
        "reason": reason,
        "machine": f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}",
        "judged_at": row["judged_at"].isoformat(timespec="seconds"),
        "measured": measured,
    }


def claims_table(
    records: Sequence[Record],
    pages: Mapping[str, str] | None = None,
    with_machine: bool = True,
) -> Table:
    """Return a table with one row per record of `entries`. `pages`: sweep id -> URL of its page on
    the site, to which experiments are linked."""

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
        known = [str(sweep_id) for sweep_id in sweeps if str(sweep_id) in (pages or {})]
        if not known:
            return Shown(None, name, sub=f"sweep {sweeps[-1]}")
        return Shown(None, name, sub=f"sweep {known[0]}", link=(pages or {})[known[0]])

    def machine(record: Record) -> Shown:
        judged_at = record["judged_at"]
        when = f"judged {judged_at[:16].replace('T', ' ')} UTC" if judged_at else ""
        return Shown(None, record["machine"] or "", "name", sub=when)

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
    ]
    if with_machine:
        columns.append(Column("machine", filter=True, optional=True, value=machine))
    return Table(columns, records, records, caption="Claims with their verdicts")

"""Published claims with their measured verdicts."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from effbench.claims import FOLDER
from effbench.claims.definition import Claim
from effbench.claims.figures import Figure
from effbench.core.labels import ABSENT, grouped, natural
from effbench.core.metrics import is_missing, significant
from effbench.core.table import Column, Shown, Table
from effbench.stats.intervals import is_number
from effbench.store.decisions import ClaimVerdict
from effbench.store.secrets import masked

#: A record of `entries`, or a row of the table `claim_verdict` with its environment.
Record = Mapping[str, Any]
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


def entries(
    claims: Sequence[tuple[str, Claim]],
    verdicts: Sequence[Record],
    shipped: Sequence[Record] = (),
    files: Mapping[str, Path] | None = None,
) -> list[dict[str, Any]]:
    """Return one record per claim and machine, with the newest verdict; `machine` is None without a
    verdict.

    `claims`: (name of the experiment, claim) pairs. `verdicts`: as `Store.verdicts` returns them.
    `shipped`: records of the reference machine, for claims without a verdict of their own. `files`:
    name -> file of the user's own experiments. Records are in natural order of the claim ids.
    """
    by_claim = grouped(verdicts, lambda row: (row["experiment"], row["claim"]))
    reference = {(record["experiment"], record["claim"]): record for record in shipped}
    records = []
    for experiment, claim in sorted(claims, key=lambda pair: natural(pair[1].id)):
        name = str((files or {}).get(experiment, experiment))
        record: dict[str, Any] = {
            "claim": claim.id,
            "statement": claim.text,
            "experiment": experiment,
            "verdict": str(ClaimVerdict.NOT_MEASURED),
            "reason": f"effbench reproduce {shlex.quote(name)}",
            "machine": None,
            "judged_at": None,
            "measured": {},
            "published": claim.published,
            "reference": False,
        }
        if claim.not_measurable:
            record["verdict"] = str(ClaimVerdict.NOT_MEASURABLE)
            record["reason"] = claim.not_measurable
        judged = by_claim.get((experiment, claim.id), [])
        records += [record | _judgement(row) for row in judged]
        if not judged:
            records.append(record | _shipped(reference.get((experiment, claim.id))))
    return records


def shipped_verdicts() -> list[dict[str, Any]]:
    """Return the shipped records of the reference machine, in the form of `entries`."""
    text = (FOLDER / "verdicts-h200.json").read_text(encoding="utf-8")
    records: list[dict[str, Any]] = json.loads(text)
    return records


def _shipped(record: Record | None) -> dict[str, Any]:
    if record is None or record["machine"] is None:
        return {}
    measured = dict(record["measured"])
    measured.pop("sweeps", None)  # they are not in this database
    kept = {name: record[name] for name in ("verdict", "reason", "judged_at")}
    machine = f"{record['machine']} (reference)"
    return kept | {"machine": machine, "measured": measured, "reference": True}


def _judgement(row: Record) -> dict[str, Any]:
    measured = dict(row["measured"] or {})
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
    the site."""
    columns = [
        Column("claim", help="id of the claim in effbench claims"),
        Column("statement", wide=True),
        Column("verdict", filter=True),
        Column("measured", numeric=True, help="figure behind the verdict, with its 95 % interval"),
        Column("published", wide=True, help="figures of others, measured on other machines"),
        Column("why", wide=True),
        Column("experiment", filter=True),
    ]
    if with_machine:
        columns.append(Column("machine", filter=True, optional=True))
    rows = [_row(record, pages or {}) for record in records]
    return Table(columns, rows, records, group="claim", caption="Claims with their verdicts")


def _row(record: Record, pages: Mapping[str, str]) -> dict[str, Any]:
    """Return the cells of a record; its experiment is linked to a sweep behind the verdict if the
    site shows one."""
    verdict, measured, judged_at = record["verdict"], record["measured"], record["judged_at"]
    value = measured.get("value")
    text = figure_text(value, measured.get("low"), measured.get("high"), measured.get("unit") or "")
    when = f"judged {judged_at[:16].replace('T', ' ')} UTC" if judged_at else ""
    sweeps = [str(sweep_id) for sweep_id in measured.get("sweeps") or ()]
    sweep_id = sweeps[-1] if sweeps else ""
    for other in reversed(sweeps):
        if other in pages:
            sweep_id = other
    sub = f"sweep {sweep_id}" if sweep_id else ""
    return {
        "claim": record["claim"],
        "statement": record["statement"],
        # a newer effbench may know other verdicts
        "verdict": Shown(verdict, verdict, TONES.get(verdict, "")),
        "measured": Shown(value if is_number(value) else None, text),
        "published": record["published"] or "",
        "why": record["reason"],
        "experiment": Shown(None, record["experiment"], sub=sub, link=pages.get(sweep_id, "")),
        "machine": Shown(None, record["machine"] or "", "name", sub=when),
    }

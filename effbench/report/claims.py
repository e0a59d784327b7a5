"""Published claims with their measured verdicts, and the tables of experiments."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from effbench.experiments import FOLDER
from effbench.experiments.definition import Claim, Pivot
from effbench.experiments.figures import Figure, Missing, Truth
from effbench.labels import ABSENT, natural
from effbench.metrics import is_missing, significant
from effbench.stats.intervals import is_number
from effbench.store.decisions import ClaimVerdict
from effbench.store.secrets import masked
from effbench.table import Column, Shown, Table

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
    scale = 100 if unit == "%" else 1
    space = "" if unit in ("×", "%", "") else " "

    def text(number: float) -> str:
        number *= scale
        return (
            f"{number:.0f}"
            if float(number).is_integer() and abs(number) < 1e15
            else significant(number, 3)
        )

    one = value == 1 and len(unit) > 2 and "/" not in unit  # a noun
    shown = f"{text(value)}{space}{unit.removesuffix('s') if one else unit}"
    return (
        shown
        if low is None or high is None or low == high
        else f"{shown} [{text(low)}, {text(high)}]"
    )


def value_text(value: Any, unit: str = "") -> str:
    """Return any value of a claim as text."""
    if (
        value is None
        or isinstance(value, Missing)
        or (isinstance(value, float) and math.isnan(value))
    ):
        return ABSENT
    if isinstance(value, Figure):
        if math.isnan(value.value):
            return "not defined"
        finite = math.isfinite(value.low) and math.isfinite(value.high)
        return figure_text(
            value.value, value.low if finite else None, value.high if finite else None, unit
        )
    if isinstance(value, list | tuple):
        return ", ".join(value_text(item, unit) for item in value)
    if isinstance(value, Truth):
        value = "null" if value.holds is None else value.holds
    if isinstance(value, int | float) and not isinstance(value, bool):
        return figure_text(value, None, None, unit)
    return str(value).lower() if isinstance(value, bool) else str(value)


def entries(
    claims: Sequence[tuple[str, Claim]],
    verdicts: Sequence[Mapping[str, Any]],
    shipped: Sequence[Mapping[str, Any]] = (),
    files: Mapping[str, Path] | None = None,
) -> list[dict[str, Any]]:
    """Return one record per claim and machine, with the newest verdict; `machine` is None without a
    verdict.

    `claims`: (name of the experiment, claim) pairs. `verdicts`: as `Store.verdicts` returns them.
    `shipped`: records of the reference machine, for claims without a verdict of their own. `files`:
    name -> file of the user's own experiments. Records are in natural order of the claim ids.
    """
    reference = {(record["experiment"], record["claim"]): record for record in shipped}
    records = []
    for experiment, claim in sorted(claims, key=lambda pair: natural(pair[1].id)):
        name = str((files or {}).get(experiment, experiment))
        record = {
            "claim": claim.id,
            "statement": claim.text,
            "experiment": experiment,
            "verdict": str(
                ClaimVerdict.NOT_MEASURABLE if claim.not_measurable else ClaimVerdict.NOT_MEASURED
            ),
            "reason": claim.not_measurable or f"effbench reproduce {shlex.quote(name)}",
            "machine": None,
            "judged_at": None,
            "measured": {},
            "published": claim.published,
            "reference": False,
        }
        judged = [
            row for row in verdicts if (row["experiment"], row["claim"]) == (experiment, claim.id)
        ]
        elsewhere = _shipped(reference.get((experiment, claim.id)))
        records += [record | _judgement(row) for row in judged] or [record | elsewhere]
    return records


def shipped_verdicts() -> list[dict[str, Any]]:
    """Return the shipped records of the reference machine, in the form of `entries`."""
    return json.loads((FOLDER / "verdicts-h200.json").read_text(encoding="utf-8"))


def _shipped(record: Mapping[str, Any] | None) -> dict[str, Any]:
    if record is None or record["machine"] is None:
        return {}
    # not in this database
    measured = {name: value for name, value in record["measured"].items() if name != "sweeps"}
    kept = {name: record[name] for name in ("verdict", "reason", "judged_at")}
    return kept | {
        "machine": f"{record['machine']} (reference)",
        "measured": measured,
        "reference": True,
    }


def _judgement(row: Mapping[str, Any]) -> dict[str, Any]:
    measured = dict(row["measured"] or {})
    words = masked(measured.get("overrides") or ())  # overrides such as bs=4 change what is tested
    return {
        "verdict": row["verdict"],
        "reason": (row["reason"] or "") + (f"; measured with {' '.join(words)}" if words else ""),
        "machine": f"{row['gpu_name'] or row['cpu_name']}, torch {row['torch_version']}",
        "judged_at": row["judged_at"].isoformat(timespec="seconds"),
        "measured": measured,
    }


def claims_table(
    records: Sequence[Mapping[str, Any]],
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
        *([Column("machine", filter=True, optional=True)] if with_machine else []),
    ]
    rows = []
    for record in records:
        verdict, measured, judged_at = record["verdict"], record["measured"], record["judged_at"]
        value = measured.get("value")
        text = figure_text(
            value, measured.get("low"), measured.get("high"), measured.get("unit") or ""
        )
        when = f"judged {judged_at[:16].replace('T', ' ')} UTC" if judged_at else ""
        rows.append(
            {
                "claim": record["claim"],
                "statement": record["statement"],
                # a newer effbench may know other verdicts
                "verdict": Shown(verdict, verdict, TONES.get(verdict, "")),
                "measured": Shown(value if is_number(value) else None, text),
                "published": record["published"] or "",
                "why": record["reason"],
                "experiment": _experiment(record, pages or {}),
                "machine": Shown(None, record["machine"] or "", "name", sub=when),
            }
        )
    return Table(columns, rows, records, group="claim", caption="Claims with their verdicts")


def _experiment(record: Mapping[str, Any], pages: Mapping[str, str]) -> Shown:
    """Return the experiment, linked to a sweep behind the verdict if the site shows one."""
    sweeps = [str(sweep_id) for sweep_id in record["measured"].get("sweeps") or ()]
    linked = next((sweep_id for sweep_id in sweeps if sweep_id in pages), None)
    sub = f"sweep {linked or sweeps[-1]}" if sweeps else ""
    return Shown(None, record["experiment"], sub=sub, link=pages.get(linked, ""))


def marked_values(pivot: Pivot, rows: Any) -> dict[int, Any]:
    """Return the position of each row of a whole frame whose host was disturbed -> its value, which
    decides nothing."""
    from effbench.experiments.frames import DISTURBANCE, column_of

    if DISTURBANCE not in rows or rows[DISTURBANCE].isna().all():
        return {}
    whole = rows.attrs["with_marks"]()
    if len(whole) != len(rows):
        return {}
    values = pivot.value(whole) if callable(pivot.value) else column_of(whole, pivot.value)
    disturbed = rows[DISTURBANCE].notna()
    return {
        place: value
        for place, value in enumerate(values)
        if disturbed.iloc[place] and not is_missing(value)
    }


def pivot_table(pivot: Pivot, rows: Any) -> Table:
    """Return a table of one value, pivoted from a frame; rows of the frame that are not `ok` show
    their status, and marked rows their value with `~`."""
    from effbench.experiments.frames import column_of  # imports pandas

    for name in (pivot.columns, *pivot.rows):
        column_of(rows, name)  # names the nearest column of a misspelt one
    values = pivot.value(rows) if callable(pivot.value) else column_of(rows, pivot.value)
    lines: dict[tuple[str, ...], dict[str, list[str]]] = {}
    across: dict[str, None] = {}
    marked = marked_values(pivot, rows)
    for place, ((_, row), value) in enumerate(zip(rows.iterrows(), values, strict=True)):
        heading = value_text(row[pivot.columns])
        across[heading] = None
        text = value_text(value, pivot.unit)
        if text == ABSENT and place in marked:
            text = f"~{value_text(marked[place], pivot.unit)}"
        if text == ABSENT and row["status"] != "ok":
            text = row["status"]
        key = tuple(value_text(row[name]) for name in pivot.rows)
        lines.setdefault(key, {}).setdefault(heading, []).append(text)
    columns = [Column(name) for name in pivot.rows] + [
        Column(f"{name} ", name, numeric=True) for name in across
    ]
    body = [
        [*key, *(", ".join(line.get(name, [ABSENT])) for name in across)]
        for key, line in lines.items()
    ]
    return Table.of(columns, body)
